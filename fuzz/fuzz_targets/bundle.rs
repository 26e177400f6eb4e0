//! No manifest, TUF metadata or package index makes the parsers panic. A manifest that is accepted
//! has one encoding.
#![no_main]

use farrier_bundle::Bundle;
use farrier_bundle::tuf::TrustedMetadata;
use farrier_bundle::{deb, rpm};
use libfuzzer_sys::fuzz_target;

const ROOT: &[u8] = include_bytes!("../../crates/bundle/tests/input/python_tuf/1.root.json");

fuzz_target!(|bytes: &[u8]| {
    if let Ok(bundle) = Bundle::parse(bytes) {
        assert_eq!(bundle.encode().ok().as_deref(), Some(bytes));
    }
    let _ = TrustedMetadata::new(bytes);
    if let Ok(mut trusted) = TrustedMetadata::new(ROOT) {
        let _ = trusted.update_root(bytes);
        assert!(trusted.update_timestamp(bytes, jiff::Timestamp::UNIX_EPOCH).is_err());
    }
    let _ = deb::control_of(bytes);
    let _ = rpm::read_header(bytes);
    let _ = rpm::index_file(bytes);
    let _ = rpm::packages(bytes, 0);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = deb::paragraphs(text);
        let _ = deb::dependencies(text, "amd64");
    }
});
