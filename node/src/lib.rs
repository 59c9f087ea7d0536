//! The hands of Rota: actors, devices, processes, network, gossip, API and command line.
//!
//! A library, so that the chaos tests can run the very same program; nothing outside this workspace depends on it.

pub mod actors;
pub mod address_book;
pub mod advertise;
pub mod agent;
pub mod api;
pub mod bench;
pub mod boot;
pub mod certificates;
pub mod cli;
pub mod client;
mod clocks;
pub mod config;
pub mod containers;
pub mod data;
pub mod demo;
pub mod devices;
pub mod doctor;
mod elections;
pub mod framing;
pub mod hooks;
pub mod http;
pub mod io;
pub mod lab;
pub mod lab_work;
mod lead;
pub mod logic;
pub mod machine;
pub mod members;
pub mod meters;
pub mod net;
pub mod node;
pub mod notify;
pub mod ops;
pub mod output_config;
pub mod own_address;
mod own_drain;
pub mod parse;
pub mod peer_handler;
pub mod recovery;
pub mod relay;
pub mod shim;
mod storage;
pub mod table;
pub mod warden;

pub use io::ffi::Allocator;

use cli::ops::Handlers;
use std::ffi::OsString;
use std::process::ExitCode;

/// The program. The fork server comes before anything else: it copies itself, which only a process with one thread
/// and no runtime may do.
#[must_use]
pub fn main() -> ExitCode {
    main_with(std::env::args_os().collect())
}

/// The program with other arguments than the process's own: the chaos tests are `rota` after their first word.
#[must_use]
pub fn main_with(args: Vec<OsString>) -> ExitCode {
    if args.get(1).is_some_and(|first| first == shim::SERVER_ARG) {
        std::process::exit(shim::server_main(args.into_iter().skip(2)));
    }
    if args.get(1).is_some_and(|first| first == devices::probe::PROBE_ARG) {
        std::process::exit(devices::probe::probe_main(args.into_iter().skip(2)));
    }
    // Whoever came here by these arguments comes there by the other.
    devices::probe::this_program_probes();
    let handlers = Handlers {
        init: ops::init,
        join: ops::join,
        agent: ops::agent,
        dev: ops::dev,
        demo: ops::demo,
        bench: ops::bench,
    };
    cli::main(args, &handlers)
}
