//! Whatever a caller or an operator sends is read without a panic, means the same to the code and to a plain description
//! of it, and is repeated by no error.
//!
//! Each target reads bytes: those of its corpus in `__fuzz__`, changed ones, and random ones. `make fuzz` has them run for a
//! minute, and `cargo bolero test --test fuzz NAME` looks for inputs that reach new code.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test that cannot go on must fail"
)]

mod facades;
mod mutate;
mod parsers;
mod requests;

/// Makes one target out of a function of bytes.
macro_rules! targets {
    ($($name:ident: $property:expr;)+) => {
        $(#[test]
        fn $name() {
            let corpus = mutate::corpus(stringify!($name));
            bolero::check!().for_each(|input: &[u8]| {
                mutate::shown(input, $property);
                mutate::shown(&mutate::change(&corpus, input), $property);
            });
        })+
    };
}

targets! {
    names_of_locks: parsers::names;
    tokens: parsers::tokens;
    api_keys: parsers::api_keys;
    keys_files: parsers::keys_files;
    requests: requests::anybody;
    requests_with_keys: requests::with_keys;
    requests_of_tools: facades::with_keys;
}
