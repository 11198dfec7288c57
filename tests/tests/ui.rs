//! What the compiler answers to mistakes in the derives: one file a mistake, named for it, its answer beside it.

#[test]
fn mistakes_are_answered() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
