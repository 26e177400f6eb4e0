//! Finds private keys, which extend over many lines.

/// Markers at the beginning and at the end of a private key. Each marker is followed by the type of
/// the key.
const BEGIN: &str = "-----BEGIN";
pub(super) const END: &str = "-----END";

/// Maximum number of lines of a private key. The longest keys in use have about a hundred lines.
pub(super) const KEY_LINES_MAX: usize = 200;

/// The checksum after a PGP key: `=` and four characters.
const CHECKSUM_CHARS: usize = 5;

/// Returns how much of `rest` belongs to a private key that begins in `line`.
pub(super) fn key_len(line: &str, rest: &str) -> Option<usize> {
    let lines = rest.split_inclusive('\n').take(KEY_LINES_MAX);
    let total_len = |count| lines.clone().take(count).map(str::len).sum();
    if let Some((_, count)) = line.split_once("Private-Lines:")
        && let Ok(count) = count.trim().parse()
    {
        return Some(total_len(count));
    }
    if !has_marker(line, BEGIN) {
        return None;
    }
    // A key on a single line, as in JSON, ends there.
    if line.rfind(END) > line.rfind(BEGIN) {
        return Some(0);
    }
    // In a log, each line has a timestamp and other prefixes, so redact all lines up to the end
    // marker. A line that only mentions a key has no end marker. If another begin marker comes
    // first, the next end marker belongs to that other key.
    let mut own = lines.clone().take_while(|line| !has_marker(line, BEGIN));
    let is_complete = line.contains("KEY-----") || line.contains("BLOCK-----");
    if let Some(end) = own.position(|line| has_marker(line, END)).filter(|_| is_complete) {
        return Some(total_len(end + 1));
    }
    Some(total_len(lines.clone().take_while(|line| is_key_line(line)).count()))
}

/// `true` if a line contains this marker, and the marker is that of a private key.
pub(super) fn has_marker(line: &str, marker: &str) -> bool {
    line.split_once(marker).is_some_and(|(_, rest)| rest.contains("PRIVATE KEY"))
}

/// Removes the lines at the end of `out` that may belong to a private key. The last line of a key
/// may be short. If the last line is a PGP checksum, the line before it may be short too.
pub(super) fn cut_key(out: &mut String) {
    let mut may_be_short = true;
    while let Some(line) = out.split_inclusive('\n').next_back() {
        let last = last_word(line);
        if !(is_key_line(line) || may_be_short && is_base64(last)) {
            return;
        }
        may_be_short &= last.len() == CHECKSUM_CHARS && last.starts_with('=');
        out.truncate(out.len() - line.len());
    }
}

fn is_base64(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
}

fn last_word(line: &str) -> &str {
    line.trim().rsplit(' ').next().unwrap_or_default()
}

/// `true` if a line may belong to a private key. Such a line is a header, or base64, possibly after
/// a timestamp.
fn is_key_line(line: &str) -> bool {
    let line = line.trim();
    let last = last_word(line);
    is_base64(line)
        || is_base64(last) && last.len() >= 32
        || ["Proc-Type:", "DEK-Info:", "Comment:", "Version:"]
            .iter()
            .any(|header| line.starts_with(header))
}
