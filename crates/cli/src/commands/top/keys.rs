//! Keys, from the bytes of a terminal.

/// A key.
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

/// What cannot be a key yet: it may go on in the next bytes.
pub(super) fn is_begun(bytes: &[u8]) -> bool {
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

/// The keys in some bytes. A sequence that nobody knows is passed over as a whole.
pub(super) fn keys(bytes: &[u8]) -> Vec<Key> {
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
                    keys.extend(end.and_then(|end| sequence(&parameters, end)));
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

fn sequence(parameters: &str, end: char) -> Option<Key> {
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
    fn bytes_are_keys() {
        assert_eq!(keys(b"q/\r"), [Key::Letter('q'), Key::Letter('/'), Key::Enter]);
        assert_eq!(
            keys(b"\x1b[A\x1bOB\x1b[5~\x1b[1;5C"),
            [Key::Up, Key::Down, Key::PageUp, Key::Right]
        );
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys("\x1bé\x7f".as_bytes()), [Key::Escape, Key::Letter('é'), Key::Backspace]);
        assert_eq!(keys(b"\x1b[99zx\x01\xff"), [Key::Letter('x'), Key::Letter('\u{fffd}')]);
    }

    #[test]
    fn a_sequence_that_came_in_halves_is_waited_for() {
        for begun in [&b"\x1b"[..], b"\x1b[", b"q\x1b[1;", b"\xc3"] {
            assert!(is_begun(begun), "{begun:?}");
        }
        for whole in [&b"q"[..], b"\x1b[A", b"\x1bx", "é".as_bytes(), b""] {
            assert!(!is_begun(whole), "{whole:?}");
        }
    }
}
