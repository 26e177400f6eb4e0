//! A runbook page as Markdown.

use super::Runbook;

/// Longest line of a page.
const COLUMNS: usize = 100;

impl Runbook {
    /// The page for `docs/runbooks/`.
    pub fn markdown(&self) -> String {
        let word =
            |value: Option<String>| value.unwrap_or_else(|| "as the event or check".to_owned());
        let mut page = format!("# {}\n\n", self.title);
        page.push_str(&format!(
            "Severity: {} · Action: {}\n\n",
            word(self.severity.map(|severity| severity.to_string())),
            word(self.action.map(|action| action.to_string()))
        ));
        section(&mut page, "What it means", std::slice::from_ref(&self.meaning));
        section(&mut page, "What opens it", &[format!("{}.", self.evidence), self.clears.clone()]);
        page.push_str("## First commands\n\n```sh\n");
        for command in &self.first_commands {
            page.push_str(&format!("# {}\n{}\n", command.shows, command.run));
        }
        page.push_str("```\n\n");
        list(&mut page, "What Farrier does by itself", &self.automation);
        list(&mut page, "When to replace the part", &self.replacement);
        section(&mut page, "Source", std::slice::from_ref(&self.source));
        page.truncate(page.trim_end().len());
        page.push('\n');
        page
    }
}

fn section(page: &mut String, title: &str, paragraphs: &[String]) {
    page.push_str(&format!("## {title}\n\n"));
    for paragraph in paragraphs.iter().filter(|paragraph| !paragraph.is_empty()) {
        page.push_str(&wrapped(paragraph, ""));
        page.push_str("\n\n");
    }
}

fn list(page: &mut String, title: &str, items: &[String]) {
    page.push_str(&format!("## {title}\n\n"));
    for item in items {
        page.push_str(&format!("- {}\n", wrapped(item, "  ")));
    }
    page.push('\n');
}

/// Breaks the text at spaces. `indent` precedes the second and later lines.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().filter(|line| {
            line.is_empty()
                || indent.len() + line.chars().count() + 1 + word.chars().count() <= COLUMNS
        });
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => line.push_str(&format!(" {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{indent}"))
}
