//! Rules that the configuration changes.

use super::*;

#[test]
fn disabling_a_rule_clears_its_findings() {
    let mut node = TestNode::new();
    node.line(1, XID_48);
    assert_eq!(node.count("gpu.xid"), Some(1));
    let off = RuleOverride { enabled: Some(false), ..RuleOverride::default() };
    node.config.rules.insert("gpu.xid".to_owned(), off);
    let path = std::path::PathBuf::from("/etc/agent.toml");
    let err = crate::config::ConfigError::TooLarge { path: path.clone() };
    let rejected = ConfigRejected { path, err };
    assert_eq!(
        rejected.to_string(),
        "`/etc/agent.toml` is larger than 1 MiB; \
         `farrier agent --check-config --config /etc/agent.toml` lists all"
    );
    node.turn(vec![CollectorMessage::ConfigRejected(rejected)], false);
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentConfigGood), Some(Reading::Value(0.0)));
    let config = Box::new(node.config.clone());
    node.turn(vec![CollectorMessage::Reloaded(config)], false);
    let state = node.tick();
    assert_eq!(signal(&state, Signal::AgentConfigGood), Some(Reading::Value(1.0)));
    assert_eq!(node.count("gpu.xid"), None);
}
