//! Console sessions: those of README, `docs/` and `tests/cli/`, run with the built binary.
#![allow(missing_docs)]

#[test]
fn console_sessions_are_what_the_program_prints() {
    let home = tempfile::tempdir().expect("a temporary directory");
    trycmd::TestCases::new()
        .env("HOME", home.path().to_string_lossy())
        .case("README.md")
        .case("docs/*.md")
        .case("tests/cli/*.trycmd");
}
