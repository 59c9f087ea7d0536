//! A spec as people check it: what was understood, in the parser's own units, so that each line could be typed again.

use super::times::stamp;
use crate::parse::pace::speeds_text;
use crate::parse::{amount, shape, time, word};
use rota_core::view::ask_text;
use rota_protocol::ask::Ask;
use rota_protocol::container::ContainerSpec;
use rota_protocol::job::JobSpec;
use rota_protocol::work::Layout;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// What a task that asks for no memory has: no host is chosen yet, so no figure can be told.
const NO_MEM: &str = "your part of the host, by its CPUs, at least 2 GiB: more of it with --mem";

/// One `key value` line for each thing that was said or that matters unsaid.
#[must_use]
pub fn echo(spec: &JobSpec) -> String {
    let mut lines = Lines::default();
    lines.add("name", &spec.name);
    command(&mut lines, &spec.argv);
    lines.add("workdir", OsString::from_vec(spec.workdir.clone()).to_string_lossy());
    needs(&mut lines, &spec.ask);
    for ask in &spec.alternatives {
        lines.add("or", ask_text(ask));
    }
    shape_and_start(&mut lines, spec);
    end(&mut lines, spec);
    output(&mut lines, spec);
    for input in &spec.inputs {
        lines.add("input", format!("{}={}", input.name, input.blob));
    }
    lines.add("env", format!("{} variables", spec.env.len()));
    lines.0.join("\n")
}

/// What an argument of several lines, such as a script, is called where its lines follow.
const BELOW: &str = "(the lines below)";

/// The command; an argument of several lines stands below it, a line each.
fn command(lines: &mut Lines, argv: &[Vec<u8>]) {
    let is_long = |word: &Vec<u8>| word.contains(&b'\n');
    let words = argv.iter().map(|word| match is_long(word) {
        true => BELOW.to_owned(),
        false => shell_words(std::slice::from_ref(word)),
    });
    lines.add("command", words.collect::<Vec<_>>().join(" "));
    for word in argv.iter().filter(|word| is_long(word)) {
        for line in String::from_utf8_lossy(word).lines() {
            lines.add("", format!("| {}", line.replace('\t', "    ")));
        }
    }
}

/// Arguments on one line, quoted where a shell would need it.
#[must_use]
pub fn shell_words(argv: &[Vec<u8>]) -> String {
    let words = argv.iter().map(|word| {
        let word = String::from_utf8_lossy(word);
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    fn add(&mut self, key: &str, value: impl AsRef<str>) {
        self.0.push(crate::table::clean(&format!("{key:<9} {}", value.as_ref())).into_owned());
    }

    fn add_if(&mut self, said: bool, key: &str, value: impl AsRef<str>) {
        if said {
            self.add(key, value);
        }
    }
}

fn needs(lines: &mut Lines, ask: &Ask) {
    lines.add("gpus", amount::milli_text(ask.gpu_milli));
    lines.add("cpus", amount::milli_text(ask.cpus_milli));
    lines.add_if(!ask.gpu_models.is_empty(), "gpu-model", ask.gpu_models.join(","));
    lines.add_if(!ask.gpu_models_preferred.is_empty(), "prefer", ask.gpu_models_preferred.join(","));
    lines.add_if(ask.compute_cap_min > 0, "compute-cap", rota_core::fit::tenths(ask.compute_cap_min));
    for (name, mib) in [("vram", ask.vram_mib), ("mem", ask.mem_mib)] {
        lines.add_if(mib > 0, name, amount::memory_text(mib));
    }
    lines.add_if(ask.mem_mib == 0, "mem", NO_MEM);
    for (kind, count) in &ask.devices {
        lines.add("device", format!("{kind}={count}"));
    }
    for (key, value) in &ask.labels {
        lines.add("label", format!("{key}={value}"));
    }
}

fn shape_and_start(lines: &mut Lines, spec: &JobSpec) {
    if let Some(array) = &spec.array {
        let cap = match array.parallel_max {
            0 => String::new(),
            most => format!(", at most {most} at once"),
        };
        lines.add("array", format!("{} ({} tasks{cap})", word::array_text(array), array.count()));
    }
    if let Some(gang) = &spec.gang {
        lines.add("gang", shape::gang_text(gang));
    }
    lines.add_if(spec.layout != Layout::Any, "layout", shape::layout_text(spec.layout));
    lines.add_if(!spec.after.is_empty(), "after", shape::after_text(&spec.after));
    lines.add_if(!spec.queue.is_empty(), "queue", &spec.queue);
    for (name, at_ms) in
        [("begin", spec.begin_ms), ("deadline", spec.deadline_ms), ("idle-until", spec.idle_until_ms)]
    {
        if let Some(at_ms) = at_ms {
            lines.add(name, stamp(at_ms));
        }
    }
    lines.add_if(spec.hold, "hold", "yes");
    lines.add("priority", spec.priority.to_string());
}

fn output(lines: &mut Lines, spec: &JobSpec) {
    let output = spec.output();
    for (name, file) in [("output", &output.stdout), ("error", &output.stderr)] {
        if let Some(file) = file {
            lines.add(name, String::from_utf8_lossy(file));
        }
    }
    lines.add_if(output.replace, "output-mode", "truncate");
    if let Some(bytes) = output.bytes_max {
        lines.add("output-max", amount::memory_text(bytes.div_ceil(1 << 20)));
    }
    if let Some(stdin) = &output.stdin {
        lines.add("stdin", format!("{} bytes", stdin.len()));
    }
}

fn end(lines: &mut Lines, spec: &JobSpec) {
    lines.add("time", spec.time_limit_ms.map_or("unlimited".to_owned(), time::duration_text));
    if let Some(ms) = spec.grace_ms {
        lines.add("grace", time::duration_text(ms.into()));
    }
    if let Some(warning) = &spec.warning {
        lines.add("warn", shape::warning_text(warning));
    }
    lines.add("retries", spec.retries.to_string());
    if let Some(status) = spec.requeue_status {
        lines.add("requeue-status", status.to_string());
    }
    lines.add_if(spec.session.is_some(), "pty", "yes");
    lines.add_if(spec.service, "service", "yes");
    lines.add_if(!spec.preemptible, "preemptible", "no");
    lines.add_if(!spec.requeue, "requeue", "no");
    if let Some(pace) = &spec.pace {
        lines.add_if(pace.resumes, "resumes", "yes");
        if let Some(ms) = pace.work_ms {
            lines.add("work", time::duration_text(ms));
        }
        lines.add_if(!pace.speeds.is_empty(), "speed", speeds_text(&pace.speeds));
    }
    if let Some(container) = &spec.container {
        container_lines(lines, container);
    }
}

fn container_lines(lines: &mut Lines, container: &ContainerSpec) {
    lines.add("image", &container.image);
    for mount in &container.mounts {
        let mode = if mount.read_only { ":ro" } else { "" };
        lines.add("mount", format!("{}:{}{mode}", mount.source, mount.target));
    }
    if let Some(dir) = &container.workdir {
        lines.add("container-workdir", dir);
    }
    lines.add_if(container.entrypoint, "entrypoint", "yes");
    lines.add_if(container.read_only, "read-only", "yes");
}
