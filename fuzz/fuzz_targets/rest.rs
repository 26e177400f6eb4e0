//! No path, query, cursor or body makes the server panic. The input has the method, the path, the
//! query and the body of a request on separate lines.
#![no_main]

use farrier_server::rest::reads;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
    let mut part = || parts.next().unwrap_or_default();
    let (method, path, query, body) = (part(), part(), part(), part());
    let path = String::from_utf8_lossy(path);
    let query = String::from_utf8_lossy(query);
    let _ = reads(method, &path, &query, body);
});
