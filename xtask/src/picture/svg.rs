//! Renders a terminal screen (`tmux capture-pane -e`) as SVG text.

/// Width of a character cell in SVG units. Text is stretched to this width.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 17.0;
const MARGIN: f64 = 10.0;

const BACKGROUND: &str = "#14161b";
const PLAIN: &str = "#d5d8de";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct TextStyle {
    colour: Option<u8>,
    is_strong: bool,
    is_dim: bool,
    is_reversed: bool,
}

impl TextStyle {
    /// Applies the parameters of an SGR sequence, `ESC [ ... m`.
    fn apply_sgr(&mut self, numbers: &str) {
        for number in numbers.split(';') {
            match number.parse().unwrap_or(0_u8) {
                0 => *self = Self::default(),
                1 => self.is_strong = true,
                2 => self.is_dim = true,
                7 => self.is_reversed = true,
                22 => (self.is_strong, self.is_dim) = (false, false),
                27 => self.is_reversed = false,
                39 => self.colour = None,
                colour @ 30..=37 => self.colour = Some(colour - 30),
                _ => {}
            }
        }
    }

    fn fill(self) -> &'static str {
        match self.colour {
            Some(1) => "#ff6b68",
            Some(2) => "#7bc275",
            Some(3) => "#e5c07b",
            _ if self.is_dim => "#868c98",
            _ => PLAIN,
        }
    }
}

/// Renders a screen of this size.
pub(super) fn render(screen: &str, (columns, rows): (u16, u16)) -> String {
    let width = f64::from(columns) * WIDTH + 2.0 * MARGIN;
    let height = f64::from(rows) * HEIGHT + 2.0 * MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n"
    );
    // tmux carries attributes over from one line to the next.
    let mut style = TextStyle::default();
    for (row, line) in screen.lines().take(usize::from(rows)).enumerate() {
        let top = MARGIN + HEIGHT * f64::from(u16::try_from(row).unwrap_or(0));
        for (column, run, style) in runs(line, &mut style) {
            let count = u16::try_from(run.chars().count()).unwrap_or(0);
            let left = MARGIN + WIDTH * f64::from(column);
            let wide = WIDTH * f64::from(count);
            if style.is_reversed {
                text.push_str(&format!(
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{HEIGHT}\" fill=\"{}\"/>\n",
                    style.fill()
                ));
            }
            if run.trim().is_empty() {
                continue;
            }
            let fill = if style.is_reversed { BACKGROUND } else { style.fill() };
            let weight = if style.is_strong { " font-weight=\"bold\"" } else { "" };
            text.push_str(&format!(
                "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{wide:.1}\" lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\" fill=\"{fill}\"{weight}>{}</text>\n",
                top + 13.0,
                escaped(&run)
            ));
        }
    }
    text.push_str("</svg>\n");
    text
}

/// Splits a line into runs of equal attributes, each with its start column.
fn runs(line: &str, style: &mut TextStyle) -> Vec<(u16, String, TextStyle)> {
    let mut runs: Vec<(u16, String, TextStyle)> = Vec::new();
    let mut column = 0_u16;
    let mut chars = line.chars();
    while let Some(ch) = chars.next() {
        if ch == '\x1b' {
            let sequence: String = chars.by_ref().skip(1).take_while(|ch| *ch != 'm').collect();
            style.apply_sgr(&sequence);
            continue;
        }
        match runs.last_mut() {
            Some((_, run, before)) if *before == *style => run.push(ch),
            _ => runs.push((column, ch.to_string(), *style)),
        }
        column += 1;
    }
    runs
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_columns_are_preserved() {
        let picture = render("a\x1b[31m<b>\x1b[0;7mc\x1b[0m d", (8, 1));
        assert!(picture.contains("fill=\"#ff6b68\">&lt;b&gt;</text>"), "{picture}");
        assert!(picture.contains("<rect x=\"43.6\""), "reversed text has a background: {picture}");
        let columns: Vec<u16> = runs("a\x1b[31mbc\x1b[0m d", &mut TextStyle::default())
            .into_iter()
            .map(|(column, ..)| column)
            .collect();
        assert_eq!(columns, [0, 1, 3]);
    }
}
