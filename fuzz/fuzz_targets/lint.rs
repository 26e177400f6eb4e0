//! No text makes `lint` panic, in any language. Each finding is on a line that exists.
#![no_main]

use farrier_facts::FactSet;
use farrier_facts::lint::{Language, lint};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &str)| {
    let (language, text) = input;
    let language = match language % 6 {
        0 => Language::Python,
        1 => Language::Shell,
        2 => Language::Dockerfile,
        3 => Language::Yaml,
        4 => Language::EnvFile,
        _ => Language::Notebook,
    };
    let lines = text.lines().count() + 1;
    for finding in lint(&FactSet::embedded().settings, language, text) {
        assert!(finding.line.is_none_or(|line| (1..=lines).contains(&(line as usize))));
    }
});
