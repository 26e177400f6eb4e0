//! Manual repairs clear findings that waited for a replacement, and reset counters.

use super::*;

fn lose_gpu(engine: &mut Engine, second: i64) -> HealthDecision {
    engine.observe(at(second), &xid(79, "0000:1b:00", at(second), "a"))
}

fn has_repeat_finding(engine: &Engine) -> bool {
    engine.findings().any(|finding| finding.code == "gpu.bus-loss-repeated")
}

/// An engine whose GPU 0 fell off the bus twice, ten minutes apart.
fn engine_after_two_losses() -> Engine {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 0.0));
    lose_gpu(&mut engine, 10);
    lose_gpu(&mut engine, 610);
    assert!(has_repeat_finding(&engine));
    engine
}

#[test]
fn a_repair_resets_the_repeat_count() {
    let mut engine = engine_after_two_losses();
    let changes = engine.apply_manual_repair(at(700).wall, "a new riser", at(701));
    let cleared: Vec<&Finding> = changes.iter().map(Change::finding).collect();
    let repeated = cleared.iter().find(|finding| finding.code == "gpu.bus-loss-repeated").unwrap();
    assert_eq!(repeated.cleared.as_ref().unwrap().reason, "manually repaired: a new riser");
    assert!(!has_repeat_finding(&engine));
    // A manual repair does not clear findings that a reset or a reboot would repair.
    assert!(engine.findings().any(|finding| finding.code == "gpu.xid"));
    lose_gpu(&mut engine, 1300);
    assert!(!has_repeat_finding(&engine), "the first since the repair");
    lose_gpu(&mut engine, 1900);
    assert!(has_repeat_finding(&engine), "the second");
    // The same repair is applied again, as after a restart. Later findings stay open.
    assert_eq!(engine.apply_manual_repair(at(700).wall, "a new riser", at(2000)), []);
    assert!(has_repeat_finding(&engine));
}

#[test]
fn events_after_the_repair_keep_their_finding_open() {
    let mut engine = engine_after_two_losses();
    lose_gpu(&mut engine, 1210);
    assert_eq!(engine.apply_manual_repair(at(700).wall, "a new riser", at(1211)), []);
    assert!(has_repeat_finding(&engine));
}
