//! PEM encoding of keys and certificates. Other tools can read it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Label of a certificate.
pub const CERTIFICATE: &str = "CERTIFICATE";
/// Label of a PKCS #8 private key.
pub const PRIVATE_KEY: &str = "PRIVATE KEY";
/// Label of a public key with its algorithm (SPKI).
pub const PUBLIC_KEY: &str = "PUBLIC KEY";

const LINE: usize = 64;

/// Encodes one block.
pub fn write(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let encoded = STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

/// Decodes every block with this label, in order. Skips everything else.
pub fn read(label: &str, text: &str) -> Vec<Vec<u8>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let mut blocks = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(&begin) {
        let Some((body, after)) = after.split_once(&end) else { break };
        let body: String = body.split_whitespace().collect();
        blocks.extend(STANDARD.decode(body).ok());
        rest = after;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_blocks_read_back() {
        let text = format!(
            "a comment\n{}{}{}",
            write(CERTIFICATE, &[7; 100]),
            write(PRIVATE_KEY, b"key"),
            write(CERTIFICATE, b"")
        );
        assert_eq!(read(CERTIFICATE, &text), [vec![7; 100], Vec::new()]);
        assert_eq!(read(PRIVATE_KEY, &text), [b"key"]);
        assert_eq!(read(PRIVATE_KEY, "-----BEGIN PRIVATE KEY-----\nAA"), Vec::<Vec<u8>>::new());
    }
}
