//! The `tidings` program; all of it is in [`tidings::cli`].

fn main() -> std::process::ExitCode {
    tidings::cli::main()
}
