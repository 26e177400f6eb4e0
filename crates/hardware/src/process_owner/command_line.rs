//! A printable command line: short, without control characters or secrets.

use std::io::Read;

use farrier_facts::node::{ReadError, Reading};

use crate::root::Root;

/// Maximum bytes to read. A command line may have megabytes.
const READ_BYTES: u64 = 4096;
/// Maximum characters to display.
const SHOWN_CHARACTERS: usize = 200;

/// Words in an option or variable name whose value is secret.
const SECRETS: [&str; 6] = ["token", "password", "passwd", "secret", "credential", "key"];

pub(super) fn read(root: &Root, dir: &str) -> Option<String> {
    let bytes = root.extract(&format!("{dir}/cmdline"), |file| {
        let mut bytes = Vec::new();
        match file.take(READ_BYTES).read_to_end(&mut bytes) {
            Ok(_) => Reading::Value(bytes),
            Err(err) => Reading::Unreadable(ReadError::from(&err)),
        }
    });
    let Reading::Value(bytes) = bytes else { return None };
    let line = line(&bytes);
    // Kernel threads have no command line.
    (!line.is_empty()).then_some(line)
}

fn line(bytes: &[u8]) -> String {
    let mut shown = String::new();
    let mut hide = false;
    for word in bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty()) {
        let word = sanitize(&String::from_utf8_lossy(word));
        if !shown.is_empty() {
            shown.push(' ');
        }
        match word.split_once('=') {
            _ if hide => shown.push_str("***"),
            Some((name, _)) if is_secret(name) => shown.push_str(&format!("{name}=***")),
            _ => shown.push_str(&word),
        }
        // `--token VALUE`
        hide = !hide && word.starts_with('-') && !word.contains('=') && is_secret(&word);
    }
    if shown.chars().count() > SHOWN_CHARACTERS {
        shown = shown.chars().take(SHOWN_CHARACTERS).chain(['…']).collect();
    }
    shown
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = || name.split(|letter: char| !letter.is_ascii_alphanumeric());
    // `tokens`, `tokenizer` and `max_tokens` are ordinary model options.
    words().any(|word| SECRETS.contains(&word) || word.ends_with("password"))
}

/// Replaces characters that move the cursor or reverse the text direction, because a process may
/// choose any name.
pub(super) fn sanitize(text: &str) -> String {
    let odd = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|letter| if odd(letter) { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_and_model_options_are_shown() {
        for (words, expected) in [
            (
                "vllm serve --api-key abc --tokenizer auto",
                "vllm serve --api-key *** --tokenizer auto",
            ),
            ("x --hf_token=abc --max-tokens=7", "x --hf_token=*** --max-tokens=7"),
            (
                "env HF_TOKEN=abc WANDB_API_KEY=def python t.py",
                "env HF_TOKEN=*** WANDB_API_KEY=*** python t.py",
            ),
            ("mysql --db-password=a --password b c", "mysql --db-password=*** --password *** c"),
            ("python keys.py --keyframe 7", "python keys.py --keyframe 7"),
        ] {
            assert_eq!(line(words.replace(' ', "\0").as_bytes()), expected);
        }
    }

    #[test]
    fn long_and_binary_command_lines_are_bounded() {
        let long = line(&[b'a'; 4096]);
        assert_eq!(long.chars().count(), SHOWN_CHARACTERS + 1);
        assert_eq!(line(b"\xff\xfe\0\x1b[2J\0\n\0"), "\u{fffd}\u{fffd} \u{fffd}[2J \u{fffd}");
        assert_eq!(line(b"\0\0"), "");
    }
}
