//! The program `rota`: one binary for the agent, its shims and the command line.

/// A fifth of the processor time of a submission went into the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    rota_node::main()
}
