//! No request makes `check` panic, and no bytes make the parser of `FactSet` panic. A check always
//! states a reason.
#![no_main]

use farrier_facts::FactSet;
use farrier_facts::check::{CheckRequest, Query, check};
use jiff::civil::date;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &str, Option<&str>, Option<&str>, Option<&str>)| {
    let (gpu, driver, cuda, framework, forward_compat) = input;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let request = CheckRequest {
        gpu: gpu.to_owned(),
        driver: driver.to_owned(),
        cuda: owned(cuda),
        framework: owned(framework),
        forward_compat: owned(forward_compat),
        ..CheckRequest::default()
    };
    let set = FactSet::embedded();
    if let Ok(query) = Query::parse(set, &request, date(2026, 11, 15)) {
        assert!(!check(set, &query).reasons.is_empty());
    }
    let _ = FactSet::parse_validated(gpu.as_bytes());
});
