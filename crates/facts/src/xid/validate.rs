//! Consistency checks of `data/xids/`.

use std::collections::BTreeSet;
use std::fmt::Display;

use crate::origin::Origin;
use crate::xid::XidFacts;

/// Appends all problems of the facts.
pub(crate) fn validate(facts: &XidFacts, problems: &mut Vec<String>) {
    let mut check = Validator { facts, problems };
    check.xids();
    check.sxids();
    check.nvlink();
    check.recovery_actions();
    check.buckets();
    check.messages();
}

struct Validator<'a> {
    facts: &'a XidFacts,
    problems: &'a mut Vec<String>,
}

impl Validator<'_> {
    fn report(&mut self, what: impl Display, problem: impl Display) {
        self.problems.push(format!("xids: {what}: {problem}"));
    }

    fn origin(&mut self, what: impl Display, origin: &Origin) {
        if origin.source.is_empty() || origin.source.iter().any(|source| source.trim().is_empty()) {
            self.report(what, "no source");
        }
    }

    fn unique<T: Ord + Display>(&mut self, what: &str, keys: impl Iterator<Item = T>) {
        let mut unique = BTreeSet::new();
        for key in keys {
            if unique.contains(&key) {
                self.report(what, format_args!("`{key}` is listed twice"));
            }
            unique.insert(key);
        }
    }

    fn bucket(&mut self, what: impl Display, name: &str) {
        if self.facts.bucket_instruction(name).is_none() {
            self.report(what, format_args!("unknown bucket `{name}`"));
        }
    }

    fn xids(&mut self) {
        let facts = self.facts;
        if facts.xid.is_empty() {
            self.report("xid", "none");
        }
        self.unique("xid", facts.xid.iter().map(|xid| xid.code));
        for xid in &facts.xid {
            let what = format!("xid {}", xid.code);
            self.origin(&what, &xid.origin);
            if xid.mnemonic.is_empty() {
                self.report(&what, "no mnemonic");
            }
            for bucket in xid.immediate.iter().chain(&xid.investigatory) {
                self.bucket(&what, bucket);
            }
            let bucket = facts
                .bucket
                .iter()
                .find(|bucket| Some(bucket.name.as_str()) == xid.immediate.as_deref());
            if let Some(bucket) = bucket.filter(|bucket| bucket.action != xid.action) {
                let (action, asked) = (xid.action, bucket.action);
                let name = &bucket.name;
                self.report(
                    &what,
                    format_args!("action `{action}`, but bucket `{name}` is `{asked}`"),
                );
            }
        }
    }

    fn sxids(&mut self) {
        let facts = self.facts;
        self.unique("sxid", facts.sxid.iter().map(|sxid| sxid.code));
        for sxid in &facts.sxid {
            self.origin(format_args!("sxid {}", sxid.code), &sxid.origin);
        }
    }

    fn nvlink(&mut self) {
        let facts = self.facts;
        for (row, rule) in facts.nvlink5.iter().enumerate() {
            let what = format!("nvlink5 row {} (xid {})", row + 1, rule.xid);
            self.origin(&what, &rule.origin);
            if !(144..=150).contains(&rule.xid) {
                self.report(&what, "not an Xid of NVLink 5");
            }
            if rule.unit.is_empty() || rule.intrinfo.is_empty() {
                self.report(&what, "no unit or no pattern");
            }
            for pattern in &rule.intrinfo {
                let bits = pattern.bytes().all(|bit| matches!(bit, b'0' | b'1' | b'-'));
                if pattern.len() != 32 || !bits {
                    self.report(&what, format_args!("`{pattern}` is not 32 of `0`, `1` and `-`"));
                }
            }
            for bucket in [&rule.resolution, &rule.investigatory] {
                self.bucket(&what, bucket);
            }
        }
        let mut unique = BTreeSet::new();
        for record in &facts.nvlink_bits {
            let what = format!("nvlink_bits of register {}", record.register);
            self.origin(&what, &record.origin);
            if record.register > 6 {
                self.report(&what, "an Xid 74 prints seven registers");
            }
            for bit in &record.bits {
                if *bit > 31 || !unique.insert((record.register, *bit)) {
                    self.report(&what, format_args!("bit {bit} is above 31 or is listed twice"));
                }
            }
        }
    }

    fn recovery_actions(&mut self) {
        let facts = self.facts;
        self.unique("recovery_action", facts.recovery_action.iter().map(|action| action.value));
        for action in &facts.recovery_action {
            self.origin(format_args!("recovery_action {}", action.value), &action.origin);
        }
    }

    fn buckets(&mut self) {
        let facts = self.facts;
        self.unique("bucket", facts.bucket.iter().map(|bucket| bucket.name.as_str()));
        for bucket in &facts.bucket {
            self.origin(format_args!("bucket {}", bucket.name), &bucket.origin);
        }
    }

    fn messages(&mut self) {
        let facts = self.facts;
        self.unique("message", facts.message.iter().map(|message| message.id.as_str()));
        for message in &facts.message {
            let what = format!("message {}", message.id);
            self.origin(&what, &message.origin);
            let texts = || message.all.iter().chain(&message.any).chain(&message.none);
            if message.all.is_empty() || texts().any(String::is_empty) {
                self.report(&what, "no text to look for, or an empty one");
            }
            if !crate::decode::is_found_by_prefilter(message) {
                self.report(&what, "no text that the prefilter searches for");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::embedded_facts;

    fn problems_after(change: impl FnOnce(&mut XidFacts)) -> Vec<String> {
        let mut facts = embedded_facts();
        change(&mut facts);
        let mut found = Vec::new();
        validate(&facts, &mut found);
        found
    }

    #[test]
    fn embedded_facts_are_consistent() {
        assert_eq!(problems_after(|_| ()), Vec::<String>::new());
    }

    #[test]
    fn reports_inconsistencies() {
        let twice = problems_after(|facts| facts.xid.push(facts.xid[0].clone()));
        assert_eq!(twice, ["xids: xid: `1` is listed twice"]);
        let bare = problems_after(|facts| facts.sxid[0].origin.source.clear());
        assert_eq!(bare, ["xids: sxid 10001: no source"]);
        let short = problems_after(|facts| facts.nvlink5[0].intrinfo[0].truncate(31));
        assert_eq!(short.len(), 1, "{short:?}");
        let other = problems_after(|facts| facts.xid[0].action = crate::xid::Action::ResetGpu);
        let bucket = "action `reset-gpu`, but bucket `CONTACT_SUPPORT` is `investigate`";
        assert_eq!(other, [format!("xids: xid 1: {bucket}")]);
        let unfiltered = problems_after(|facts| facts.message[0].all = vec!["nothing".to_owned()]);
        assert_eq!(unfiltered.len(), 1, "{unfiltered:?}");
        let bit = problems_after(|facts| facts.nvlink_bits[0].bits.push(32));
        assert_eq!(bit.len(), 1, "{bit:?}");
    }
}
