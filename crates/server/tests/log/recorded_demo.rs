//! The server reads, verifies and folds a complete log that `farrier demo` wrote in format 1.

use farrier_server::log::sqlite::SqliteLog;
use farrier_server::log::verify;
use farrier_server::state_machine::StateMachine;

const DEMO: &[u8] = include_bytes!("testdata/demo_v1.log");
/// The hash of the log's head, as `farrier server backup` printed it.
const HASH: &str = "f09ad7916249fa1fb56d4584ef422160d31e5b7ab4904799e1418e5b61fe2077";

#[test]
fn a_demo_log_of_format_1_is_read_verified_and_folded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::write(&path, DEMO).unwrap();
    let log = SqliteLog::open(&path).unwrap();
    let head = verify(&log).unwrap().unwrap();
    assert_eq!((head.seq, head.hash.to_string()), (693, HASH.to_owned()));
    let state_machine = StateMachine::open(Box::new(log)).unwrap();
    assert_eq!((state_machine.state().seq, state_machine.state().nodes.len()), (693, 64));
    assert!(state_machine.state().nodes.values().any(|node| !node.quarantines.is_empty()));
}
