//! Decodes key presses from the bytes of a terminal.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Letter(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-L.
    Redraw,
}

/// Whether the bytes end in an incomplete escape sequence or UTF-8 character.
pub(super) fn is_incomplete(bytes: &[u8]) -> bool {
    match bytes.iter().rposition(|byte| *byte == 0x1b) {
        Some(at) => {
            let rest = &bytes[at + 1..];
            rest.is_empty()
                || (matches!(rest[0], b'[' | b'O')
                    && !rest[1..].iter().any(|byte| (0x40..=0x7e).contains(byte)))
        }
        None => std::str::from_utf8(bytes).is_err_and(|err| err.error_len().is_none()),
    }
}

/// Decodes key presses. Unknown escape sequences are skipped as a whole.
pub(super) fn decode(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut letters = text.chars().peekable();
    let mut keys = Vec::new();
    while let Some(letter) = letters.next() {
        match letter {
            '\x1b' => match letters.peek() {
                Some('[' | 'O') => {
                    letters.next();
                    let mut parameters = String::new();
                    let mut end = None;
                    for letter in letters.by_ref() {
                        if ('\x40'..='\x7e').contains(&letter) {
                            end = Some(letter);
                            break;
                        }
                        parameters.push(letter);
                    }
                    keys.extend(end.and_then(|end| escape_sequence(&parameters, end)));
                }
                _ => keys.push(Key::Escape),
            },
            '\r' | '\n' => keys.push(Key::Enter),
            '\x7f' | '\x08' => keys.push(Key::Backspace),
            '\x0c' => keys.push(Key::Redraw),
            letter if letter.is_control() => {}
            letter => keys.push(Key::Letter(letter)),
        }
    }
    keys
}

fn escape_sequence(parameters: &str, end: char) -> Option<Key> {
    Some(match (parameters, end) {
        (_, 'A') => Key::Up,
        (_, 'B') => Key::Down,
        (_, 'C') => Key::Right,
        (_, 'D') => Key::Left,
        (_, 'H') | ("1" | "7", '~') => Key::Home,
        (_, 'F') | ("4" | "8", '~') => Key::End,
        ("5", '~') => Key::PageUp,
        ("6", '~') => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_decode_to_keys() {
        assert_eq!(decode(b"q/\r"), [Key::Letter('q'), Key::Letter('/'), Key::Enter]);
        assert_eq!(
            decode(b"\x1b[A\x1bOB\x1b[5~\x1b[1;5C"),
            [Key::Up, Key::Down, Key::PageUp, Key::Right]
        );
        assert_eq!(decode(b"\x1b"), [Key::Escape]);
        assert_eq!(decode("\x1bé\x7f".as_bytes()), [Key::Escape, Key::Letter('é'), Key::Backspace]);
        assert_eq!(decode(b"\x1b[99zx\x01\xff"), [Key::Letter('x'), Key::Letter('\u{fffd}')]);
    }

    #[test]
    fn partial_sequences_are_incomplete() {
        for partial in [&b"\x1b"[..], b"\x1b[", b"q\x1b[1;", b"\xc3"] {
            assert!(is_incomplete(partial), "{partial:?}");
        }
        for whole in [&b"q"[..], b"\x1b[A", b"\x1bx", "é".as_bytes(), b""] {
            assert!(!is_incomplete(whole), "{whole:?}");
        }
    }
}
