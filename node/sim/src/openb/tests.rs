//! Small lists of our own: reading them, the arrivals, and replays whose end can be told by hand.

use super::*;
use std::path::Path;

const NODES: &str =
    "sn,cpu_milli,memory_mib,gpu,model\nb,16000,65536,2,X\na,16000,65536,1,Y\nc,8000,1024,0,\n";
const PODS: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
p2,1000,64,1,500,X|Y,LS
p1,2000,64,1,1000,,LS
p3,500,64,0,0,,BE
p0,1000,64,1,500,Y|X,LS
";

fn parse(nodes: &str, pods: &str) -> Result<Trace, TraceError> {
    Trace::parse((Path::new("nodes.csv"), nodes), (Path::new("pods.csv"), pods))
}

fn trace() -> Trace {
    parse(NODES, PODS).expect("the lists are right")
}

fn config(policy: Policy, online: bool) -> OpenbConfig {
    let (nodes, pods) = ("nodes.csv".into(), "pods.csv".into());
    OpenbConfig { nodes, pods, policy, seeds: 1..=3, online, tune_percent: 130, reference: true, draws: 1 }
}

fn replayed(trace: &Trace, config: &OpenbConfig) -> OpenbReport {
    let engine = |demand, lots| Ok(Compact::new(config.policy, &trace.nodes, &trace.shapes, demand, lots));
    replay(trace, config, &Pace::default(), engine, |_| None).expect("the compact engine cannot fail")
}

#[test]
fn lists_are_read_by_the_names_of_their_columns() {
    let trace = trace();
    assert_eq!(trace.models, ["X", "Y"]);
    assert_eq!(trace.nodes.iter().map(|node| node.model).collect::<Vec<_>>(), [1, 2, 0]);
    assert_eq!(trace.capacity_milli(), [0, 2_000, 1_000]);
    // p0 and p2 ask the same, whatever the order of their models. Pods are in the order of names.
    assert_eq!(trace.shapes.len(), 3);
    assert_eq!(trace.pods, [0, 1, 0, 2]);
    let swapped = PODS.replace("cpu_milli,memory_mib", "memory_mib,cpu_milli");
    assert_eq!(parse(NODES, &swapped).expect("it has all columns").shapes[1].cpus_milli, 64);
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let said = |nodes: &str, pods: &str| parse(nodes, pods).expect_err("the lists are wrong").to_string();
    assert_eq!(
        said(NODES, &PODS.replace("p1,2000", "p1,2k")),
        "pods.csv:3: cpu_milli is \"2k\", want 0 to 1000000000, such as 12000"
    );
    assert_eq!(
        said(NODES, &PODS.replace("1,1000,,LS", "2,300,,LS")),
        "pods.csv:3: gpu_milli is \"300\", want 1 to 1000, and 1000 for several GPUs, such as 1000"
    );
    assert_eq!(
        said(NODES, &PODS.replace("num_gpu", "gpus")),
        "pods.csv: no column \"num_gpu\" in the header"
    );
    assert_eq!(said(&NODES.replace(",2,X", ""), PODS), "nodes.csv:2: no field \"gpu\"");
    assert_eq!(said(NODES, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"), "pods.csv: no pod with a GPU");
}

/// What the production scheduler would refuse in the middle of a run is refused with its line, whoever places.
#[test]
fn what_no_host_and_no_pod_can_be_is_refused_with_its_line() {
    let said = |nodes: &str, pods: &str| parse(nodes, pods).expect_err("the lists are wrong").to_string();
    for (nodes, want) in [
        ("b,16000,65536,1000,X", "nodes.csv:2: gpu is \"1000\", want 0 to 128, such as 8"),
        (
            "b,16000,18446744073709551615,2,X",
            "nodes.csv:2: memory_mib is \"18446744073709551615\", want 0 to 1073741824",
        ),
        ("b,4294967295,65536,2,X", "nodes.csv:2: cpu_milli is \"4294967295\", want 0 to 1000000000"),
        ("b,16000,65536,2,X\u{7}", "nodes.csv:2: model is \"X\\u{7}\", want names of models"),
    ] {
        let error = said(&NODES.replace("b,16000,65536,2,X", nodes), PODS);
        assert!(error.starts_with(want), "{error}");
    }
    for (pod, want) in [
        ("p1,2000,64,900,1000,", "pods.csv:3: num_gpu is \"900\", want 0 to 128, such as 1"),
        (
            "p1,2000,18446744073709551615,1,1000,",
            "pods.csv:3: memory_mib is \"18446744073709551615\", want 0 to",
        ),
        ("p1,2000,64,1,1001,", "pods.csv:3: gpu_milli is \"1001\", want 0 to 1000, such as 460"),
        ("p1,2000,64,1,0,", "pods.csv:3: gpu_milli is \"0\", want 1 to 1000"),
        (&format!("p1,2000,64,1,1000,{}", "x".repeat(129)), "pods.csv:3: gpu_spec is"),
    ] {
        let error = said(NODES, &PODS.replace("p1,2000,64,1,1000,", pod));
        assert!(error.starts_with(want), "{error}");
    }
    let hosts: String = (0..20_000).map(|at| format!("h{at},1000,64,1,X\n")).collect();
    let error = said(&format!("sn,cpu_milli,memory_mib,gpu,model\n{hosts}"), PODS);
    assert_eq!(error, "nodes.csv:20001: more than 19999 hosts");
    let header = PODS.lines().next().expect("it has one");
    let error = said(NODES, &format!("{header}\np0,1,1,1,1,,\n{}", "q,1,1,0,0,,\n".repeat(2_000)));
    assert!(
        error.starts_with("pods.csv: num_gpu and gpu_milli ask 1 thousandths of a GPU over 2001 pods"),
        "{error}"
    );
}

/// A host of every size that is taken, and pods that ask no card but name models.
#[test]
fn the_bounds_of_the_lists_are_placed_on_the_production_scheduler() {
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\na,1000000000,1073741824,128,X\nb,0,0,0,\n";
    let pods =
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np0,0,1073741824,128,1000,X\np1,0,0,0,0,X|Y\n";
    let trace = parse(nodes, pods).expect("the lists are right");
    let config = OpenbConfig { reference: false, ..config(Policy::Rota, false) };
    let report = replay_product(&trace, &config, &Pace::default()).expect("the scheduler takes them");
    assert_eq!(report.per_seed.len(), 3);
    assert_eq!(report.allocated_at_100, 100.0);
}

#[test]
fn arrivals_are_all_pods_once_and_then_more_up_to_the_limit() {
    let trace = trace();
    let arrivals = trace.arrivals(&mut Lagged::new(5), 400);
    let mut first = arrivals[..4].to_vec();
    first.sort_unstable();
    assert_eq!(first, [0, 0, 1, 2]);
    let asked: u64 = arrivals.iter().map(|shape| trace.shapes[*shape as usize].gpu_milli()).sum();
    // Of 3 cards 400 %; the next pod asks one card at most.
    assert!((11_001..=12_000).contains(&asked), "{asked}");
    assert_eq!(arrivals, trace.arrivals(&mut Lagged::new(5), 400));
    assert_ne!(arrivals, trace.arrivals(&mut Lagged::new(6), 400));
}

/// Published lists with many wide pods ask for more than is wanted. Without the loss the order of arrivals is another one.
#[test]
fn a_list_that_asks_for_too_much_loses_pods_by_lot() {
    let trace = trace();
    let asked =
        |arrivals: &[u32]| arrivals.iter().map(|shape| trace.shapes[*shape as usize].gpu_milli()).sum();
    let whole: u64 = asked(&trace.pods);
    // Of 3 cards; the list asks for 2, and no pod for more than one.
    for (percent, least, most) in [(30, 0, 900), (40, 201, 1_200), (50, 501, 1_500)] {
        for seed in 0..20 {
            let arrivals = trace.arrivals(&mut Lagged::new(seed), percent);
            let left = asked(&arrivals);
            assert!((least..=most).contains(&left), "{percent} %, seed {seed}: {left}");
            // Those that are left come in the order in which they would have come.
            let mut shuffled = trace.pods.clone();
            let mut lots = Lagged::new(seed);
            lots.next_u63();
            lots.shuffle(&mut shuffled);
            let mut rest = shuffled.iter();
            assert!(arrivals.iter().all(|pod| rest.any(|other| other == pod)), "seed {seed}");
        }
    }
    assert_eq!(whole, 2_000);
    let exact = parse(&NODES.replace("a,16000,65536,1,Y\n", ""), PODS).expect("the lists are right");
    assert_eq!(exact.arrivals(&mut Lagged::new(5), 100).len(), 4, "neither lost nor drawn");
}

#[test]
fn every_policy_fills_a_cluster_that_can_be_filled() {
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\na,64000,65536,4,X\nb,64000,65536,4,X\n";
    let mut pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n".to_owned();
    for pod in 0..8 {
        pods += &format!("p{pod},1000,64,1,1000\n");
    }
    let trace = parse(nodes, &pods).expect("the lists are right");
    for policy in Policy::ALL {
        let report = replayed(&trace, &config(policy, false));
        assert_eq!(report.allocated_at_100, 100.0, "{policy}");
        // 130 % of 8 cards is 10 pods: 8 are placed and 2 dropped, in each of three runs.
        assert_eq!(report.placements, 24);
        assert!(report.per_seed.iter().all(|seed| (seed.placed, seed.dropped) == (8, 2)));
        let curve: Vec<(u64, f64)> =
            report.curve.iter().map(|point| (point.arrived, point.allocated)).collect();
        assert_eq!(curve[..2], [(13, 12.5), (25, 25.0)]);
        assert_eq!(curve.last(), Some(&(125, 100.0)));
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    let trace = trace();
    for policy in Policy::ALL {
        for online in [false, true] {
            let (once, again) = (config(policy, online), config(policy, online));
            assert_eq!(replayed(&trace, &once).per_seed, replayed(&trace, &again).per_seed, "{policy}");
        }
    }
}

#[test]
fn kept_scores_are_those_of_a_fresh_look() {
    let trace = trace();
    let demand = Demand::from_counts(counts(&trace, &trace.pods), &trace.capacity_milli());
    let mut engine = Compact::new(Policy::Rota, &trace.nodes, &trace.shapes, demand.clone(), Lagged::new(1));
    for shape in [0, 2, 0, 1, 0, 0, 1, 1, 2, 0] {
        let ask = trace.shapes[shape];
        let rated = (0..trace.nodes.len()).filter_map(|node| {
            let scored =
                rota_core::placement::score::score(Policy::Rota, &engine.fill(node), &ask, &demand, 0);
            scored.map(|scored| (scored.score, std::cmp::Reverse(node)))
        });
        let want = rated.max().map(|(_, node)| node.0);
        assert_eq!(engine.place(shape as u32), want);
    }
}

/// Three of five asks write X and Y one way and two the other: the published list has them apart, ours as one.
#[test]
fn asks_are_ranked_as_they_are_written() {
    let mut pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n".to_owned();
    for (pod, spec) in ["X|Y", "X|Y|Y", "X|Y", "X|Y|Y", "X|Y"].iter().enumerate() {
        pods += &format!("p{pod},1000,{pod},1,500,{spec}\n");
    }
    pods += "q0,9000,1,1,500,\nq1,2000,1,0,0,\nq2,2000,1,0,,\n";
    let trace = parse(NODES, &pods).expect("the lists are right");
    let ranked: Vec<(u32, u64)> =
        trace.ranked.iter().map(|(shape, count)| (shape.cpus_milli, *count)).collect();
    assert_eq!(ranked, [(1_000, 3), (2_000, 2), (1_000, 2), (9_000, 1)]);
    let capacity = trace.capacity_milli();
    let apart = Demand::from_ranked(&trace.ranked, &capacity);
    let joined = Demand::from_counts(counts(&trace, &trace.pods), &capacity);
    assert_eq!((apart.shapes().len(), joined.shapes().len()), (4, 3));
}

/// Two hosts with one card each and four asks of one card: whatever is drawn, two run. With halves the lots differ.
#[test]
fn several_draws_of_a_seed_are_told_as_their_mean() {
    let trace = trace();
    let of = |draws| replayed(&trace, &OpenbConfig { draws, ..config(Policy::Random, false) });
    let (one, many) = (of(1), of(20));
    assert_eq!(one.per_seed.len(), many.per_seed.len());
    assert_eq!(of(20).per_seed, many.per_seed);
    let ends =
        |report: &OpenbReport| report.per_seed.iter().map(|run| run.allocated_at_100).collect::<Vec<_>>();
    assert_ne!(ends(&one), ends(&many));
    assert!(ends(&many).iter().all(|end| (1.0..=100.0).contains(end)));
}

#[test]
fn lessons_come_at_powers_of_two_and_then_every_so_often() {
    let lessons: Vec<usize> = (0..=1_500).filter(|seen| is_lesson(*seen)).collect();
    assert_eq!(lessons, [1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 1_000, 1_500]);
}

#[test]
fn no_seed_and_no_file_are_said() {
    let none = OpenbConfig { seeds: RangeInclusive::new(2, 1), ..config(Policy::Rota, false) };
    assert!(matches!(run(&none), Err(OpenbError::NoSeeds)));
    let gone = OpenbConfig { nodes: "no-such-list.csv".into(), ..config(Policy::Rota, false) };
    assert!(matches!(run(&gone), Err(OpenbError::Trace(TraceError::Input(_)))));
}
