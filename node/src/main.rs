//! The program `rota`: one binary for the agent, its shims and the command line.

#[global_allocator]
static ALLOCATOR: rota_node::Allocator = rota_node::Allocator;

fn main() -> std::process::ExitCode {
    rota_node::main()
}
