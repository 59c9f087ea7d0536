//! The program `rota`: one binary for the agent, its shims and the command line.

fn main() -> std::process::ExitCode {
    rota_node::main()
}
