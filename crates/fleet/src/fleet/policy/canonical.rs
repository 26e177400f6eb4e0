//! Signatures of a policy, and the bytes that they sign. Keys and algorithms are the caller's: this
//! crate only says what is signed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Policy;

/// An ed25519 signature of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicySignature {
    /// SHA-256 of the public key, in hexadecimal digits.
    pub key: String,
    /// The signature, in hexadecimal digits.
    pub signature: String,
}

impl Policy {
    /// The bytes that a signature signs: canonical JSON of the policy without its signatures and
    /// without the overlays of sites, which other people maintain.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut signed = self.clone();
        signed.signatures.clear();
        signed.changes.overlays.clear();
        let value = serde_json::to_value(&signed).expect("a policy has string keys only");
        let mut text = String::new();
        write_canonical(&value, &mut text);
        text.into_bytes()
    }
}

/// Writes JSON with sorted keys and without white space.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            out.push('{');
            for (at, key) in keys.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                out.push_str(&Value::String(key.clone()).to_string());
                out.push(':');
                write_canonical(&fields[key], out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                write_canonical(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_bytes_do_not_depend_on_order_overlays_and_signatures() {
        let read = |json: &str| serde_json::from_str::<Policy>(json).unwrap();
        let one = read(r#"{"version": 2, "lemon": {"days": 9, "quarantines": 5}}"#);
        let other = read(
            r#"{"lemon": {"quarantines": 5, "days": 9}, "version": 2,
                "changes": {"overlays": {"a": {}}},
                "signatures": [{"key": "00", "signature": "11"}]}"#,
        );
        assert_eq!(one.signed_bytes(), other.signed_bytes());
        let changed = read(r#"{"version": 2, "lemon": {"days": 8, "quarantines": 5}}"#);
        assert_ne!(one.signed_bytes(), changed.signed_bytes());
    }

    /// A signature stays valid after an upgrade. If this test fails, signatures of existing
    /// policies become invalid.
    #[test]
    fn the_signed_bytes_of_the_default_policy_never_change() {
        let bytes = String::from_utf8(Policy::default().signed_bytes()).unwrap();
        assert_eq!(
            bytes,
            concat!(
                r#"{"capacity_floors":{"fleet":0.5,"pool":0.5},"#,
                r#""common_cause":{"nodes":3,"share":0.5,"window_s":300},"#,
                r#""disruption_budgets":{"fleet":{"share":0.1},"leaf":{"share":0.5},"#,
                r#""nvlink":{"share":0.5},"pool":{"share":0.2},"rack":{"share":0.5}},"#,
                r#""lemon":{"days":28,"quarantines":5},"pools":{},"#,
                r#""pools_default":{"autonomy":"repair","cordon_joining":false,"#,
                r#""coverage_gap_quarantines":false,"coverage_gap_timeout_s":900,"#,
                r#""drain_timeout_s":14400,"heartbeat_timeout_s":300,"lease_s":600,"#,
                r#""max_attempts":3,"reboot_needs_approval":false,"repair_windows":[],"#,
                r#""required_verifications":["v0","v1"],"retry_backoff_s":60,"settle_s":180,"#,
                r#""suspect_timeout_s":900},"services":{}}"#,
            )
        );
    }
}
