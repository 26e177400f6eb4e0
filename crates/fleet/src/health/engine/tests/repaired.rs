//! Manual repairs: clear findings that waited for a part, and reset counters.

use super::*;

fn lost(engine: &mut Engine, second: i64) -> Decision {
    engine.observe(at(second), &xid(79, "0000:1b:00", at(second), "a"))
}

fn is_repeated(engine: &Engine) -> bool {
    engine.findings().any(|it| it.code == "gpu.bus-loss-repeated")
}

/// Fell off the bus twice, ten minutes apart.
fn twice() -> Engine {
    let mut engine = engine();
    engine.observe(at(0), &sample(gpu(0), Signal::GpuRowsFailed, 0.0));
    lost(&mut engine, 10);
    lost(&mut engine, 610);
    assert!(is_repeated(&engine));
    engine
}

#[test]
fn a_loss_after_a_repair_is_the_first() {
    let mut engine = twice();
    let changes = engine.repaired(at(700).wall, "a new riser", at(701));
    let cleared: Vec<&Finding> = changes.iter().map(Change::finding).collect();
    let why = cleared.iter().find(|it| it.code == "gpu.bus-loss-repeated").unwrap();
    assert_eq!(why.cleared.as_ref().unwrap().why, "a person has repaired it: a new riser");
    assert!(!is_repeated(&engine));
    // A manual repair does not clear findings that a reset or a reboot repairs.
    assert!(engine.findings().any(|it| it.code == "gpu.xid"));
    lost(&mut engine, 1300);
    assert!(!is_repeated(&engine), "the first since the repair");
    lost(&mut engine, 1900);
    assert!(is_repeated(&engine), "the second");
    // The same repair again, as after a restart: later findings stay.
    assert_eq!(engine.repaired(at(700).wall, "a new riser", at(2000)), []);
    assert!(is_repeated(&engine));
}

#[test]
fn what_came_after_the_repair_was_noted_is_not_over() {
    let mut engine = twice();
    lost(&mut engine, 1210);
    assert_eq!(engine.repaired(at(700).wall, "a new riser", at(1211)), []);
    assert!(is_repeated(&engine));
}
