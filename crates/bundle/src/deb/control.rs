//! Control files: paragraphs of `Field: value` lines (deb-control(5)).

use std::collections::BTreeMap;

/// One paragraph. Field names are not case-sensitive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Paragraph {
    fields: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlFileError {
    #[error("line {line} is neither `Field: value` nor a continuation")]
    Line { line: usize },
    #[error("line {line} has the field `{field}` a second time")]
    Duplicate { line: usize, field: String },
}

impl Paragraph {
    /// The value of a field; later lines of it begin with a line break.
    pub fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(&field.to_ascii_lowercase()).map(String::as_str)
    }

    /// The value of a field, or an empty text.
    pub fn text(&self, field: &str) -> &str {
        self.get(field).unwrap_or_default()
    }
}

/// Parses paragraphs, which empty lines separate.
pub fn paragraphs(text: &str) -> Result<Vec<Paragraph>, ControlFileError> {
    let mut found = Vec::new();
    let mut paragraph = Paragraph::default();
    let mut current: Option<String> = None;
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            if !paragraph.fields.is_empty() {
                found.push(std::mem::take(&mut paragraph));
            }
            current = None;
        } else if text.starts_with([' ', '\t']) {
            let field = current.as_ref().ok_or(ControlFileError::Line { line })?;
            let value = paragraph.fields.entry(field.clone()).or_default();
            value.push('\n');
            value.push_str(text.trim());
        } else if !text.starts_with('#') {
            let (field, value) = text.split_once(':').ok_or(ControlFileError::Line { line })?;
            let is_name = |byte: u8| byte.is_ascii_graphic();
            if field.is_empty() || !field.bytes().all(is_name) {
                return Err(ControlFileError::Line { line });
            }
            let field = field.to_ascii_lowercase();
            if paragraph.fields.contains_key(&field) {
                return Err(ControlFileError::Duplicate { line, field });
            }
            paragraph.fields.insert(field.clone(), value.trim().to_owned());
            current = Some(field);
        }
    }
    if !paragraph.fields.is_empty() {
        found.push(paragraph);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paragraphs_have_fields_and_continuations() {
        let text = "Package: a\nDescription: one\n two\n .\n\n\n# comment\nPackage: b\nsize:  7 \n";
        let found = paragraphs(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].get("description"), Some("one\ntwo\n."));
        assert_eq!((found[1].text("PACKAGE"), found[1].text("Size")), ("b", "7"));
        assert_eq!(found[1].get("Version"), None);
    }

    #[test]
    fn ambiguous_text_is_refused() {
        assert_eq!(paragraphs(" x\n"), Err(ControlFileError::Line { line: 1 }));
        assert_eq!(paragraphs("Package a\n"), Err(ControlFileError::Line { line: 1 }));
        let field = "package".to_owned();
        let err = paragraphs("Package: a\npackage: b\n");
        assert_eq!(err, Err(ControlFileError::Duplicate { line: 2, field }));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[A-Ca-c: \n\t#.]{0,60}") {
            let _ = paragraphs(&text);
        }
    }
}
