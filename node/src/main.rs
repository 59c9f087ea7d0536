//! The binary `rota`.

fn main() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == rota_node::shim::SERVER_ARG) {
        // Before anything else: the fork server copies itself, which only a process with one thread may do.
        std::process::exit(rota_node::shim::server_main(args));
    }
}
