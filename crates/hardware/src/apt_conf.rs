//! Parser for apt's configuration language (apt.conf(5)): names and values only.

use std::collections::BTreeMap;

/// Values by full name in lower case, such as `apt::periodic::unattended-upgrade`. A scalar that
/// was set more than once has several values, and the last one is effective.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AptConf(BTreeMap<String, Vec<String>>);

impl AptConf {
    /// The effective value of a scalar.
    pub(crate) fn last(&self, name: &str) -> Option<&str> {
        self.0.get(&name.to_ascii_lowercase())?.last().map(String::as_str)
    }

    /// Every value of a list.
    pub(crate) fn all(&self, name: &str) -> &[String] {
        self.0.get(&name.to_ascii_lowercase()).map_or(&[], Vec::as_slice)
    }

    /// Parses a file into this configuration. After a syntax error, parsing continues with the next
    /// statement.
    pub(crate) fn read(&mut self, text: &str) {
        let mut scopes: Vec<String> = Vec::new();
        let mut words: Vec<String> = Vec::new();
        for token in tokens(text) {
            match token {
                Token::Word(word) => words.push(word),
                Token::Open => scopes.push(scoped(&scopes, &std::mem::take(&mut words))),
                Token::Close => {
                    self.statement(&scopes, std::mem::take(&mut words));
                    scopes.pop();
                }
                Token::End => self.statement(&scopes, std::mem::take(&mut words)),
            }
        }
        self.statement(&scopes, words);
    }

    fn statement(&mut self, scopes: &[String], mut words: Vec<String>) {
        if words.first().is_some_and(|word| word == "#clear") {
            for name in &words[1..] {
                let name = name.to_ascii_lowercase();
                let below = format!("{name}::");
                self.0.retain(|key, _| *key != name && !key.starts_with(&below));
            }
            return;
        }
        let Some(value) = words.pop() else { return };
        // A bare value inside braces belongs to the enclosing list.
        let name = scoped(scopes, &words);
        let name = name.trim_end_matches("::").to_ascii_lowercase();
        self.0.entry(name).or_default().push(value);
    }
}

fn scoped(scopes: &[String], words: &[String]) -> String {
    let own = words.first().map_or("", String::as_str);
    match scopes.last() {
        Some(scope) if own.is_empty() => scope.clone(),
        Some(scope) if !scope.is_empty() => format!("{scope}::{own}"),
        _ => own.to_owned(),
    }
}

enum Token {
    Word(String),
    Open,
    Close,
    End,
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let cut = |end: Option<usize>, over: usize| end.map_or("", |end| &rest[end + over..]);
        match letter {
            '{' | '}' | ';' => {
                found.push(match letter {
                    '{' => Token::Open,
                    '}' => Token::Close,
                    _ => Token::End,
                });
                rest = &rest[1..];
            }
            '"' => {
                let end = rest[1..].find('"').map(|end| end + 1);
                found.push(Token::Word(rest[1..end.unwrap_or(rest.len())].to_owned()));
                rest = cut(end, 1);
            }
            '/' if rest.starts_with("//") => rest = cut(rest.find('\n'), 1),
            '/' if rest.starts_with("/*") => rest = cut(rest.find("*/"), 2),
            '#' if !rest.starts_with("#clear") => rest = cut(rest.find('\n'), 1),
            letter if letter.is_whitespace() => rest = &rest[letter.len_utf8()..],
            _ => {
                let ends = |letter: char| letter.is_whitespace() || "{};\"".contains(letter);
                let end = rest.find(ends).unwrap_or(rest.len());
                found.push(Token::Word(rest[..end].to_owned()));
                rest = &rest[end..];
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flat_and_nested_syntax_are_equivalent() {
        let mut conf = AptConf::default();
        conf.read("APT::Periodic::Update-Package-Lists \"1\";\nAPT::Periodic::Unattended-Upgrade \"1\";\n");
        conf.read(
            "// a comment with \"quotes\"\nUnattended-Upgrade::Package-Blacklist {\n  \"nvidia-\";\n\
             //  \"linux-\";\n  # \"old\";\n  /* \"gone\"; */ \"libnvidia-\";\n};\n\
             APT { Periodic { Unattended-Upgrade \"0\"; }; };\n",
        );
        assert_eq!(conf.last("apt::periodic::unattended-upgrade"), Some("0"));
        assert_eq!(
            conf.all("Unattended-Upgrade::Package-Blacklist"),
            ["nvidia-".to_owned(), "libnvidia-".to_owned()]
        );
        conf.read("Unattended-Upgrade::Package-Blacklist:: \"linux-\";");
        assert_eq!(conf.all("Unattended-Upgrade::Package-Blacklist").len(), 3);
        conf.read("#clear Unattended-Upgrade::Package-Blacklist;");
        assert!(conf.all("Unattended-Upgrade::Package-Blacklist").is_empty());
    }

    proptest! {
        #[test]
        fn no_input_panics(text in "[a-zA-Z:;{}\"/*# \n\u{e9}]{0,200}") {
            AptConf::default().read(&text);
        }
    }
}
