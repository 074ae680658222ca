package display

import (
	"strings"
	"unicode/utf8"
)

const (
	// tableWidth is the most columns of a table: two halves of a wide terminal, or one page of an editor.
	tableWidth = 100
	// leastName is the narrowest that the names of a table are cut to, leastText that other text is.
	leastName = 12
	leastText = 16
)

// table is rows of cells under a header, written in columns. A row may be shorter than the header.
type table struct {
	// right says which columns are numbers and end in line; all others begin in line.
	right []bool
	rows  [][]string
	// terminal is the most columns of a terminal that must not wrap a line; 0 when the table is no part of a screen.
	terminal int
	// spare are the columns that are left out where the table is wider than fits, the first one first.
	spare []int
	// cuts is the spare column that is cut before it is left out; 0 is none.
	cuts int
	// hidden are the titles of those that were.
	hidden []string
}

// newTable returns a table whose columns have these titles; a title that begins with ">" is that of numbers.
func newTable(titles ...string) *table {
	t := &table{right: make([]bool, len(titles))}
	header := make([]string, len(titles))
	for i, title := range titles {
		header[i], t.right[i] = strings.CutPrefix(title, ">")
	}
	t.rows = [][]string{header}
	return t
}

// add appends a row.
func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// lines writes the table, each line after indent. Where it is wider than fits, spare columns are left out, and then the
// first column, which has the names, is cut.
func (t *table) lines(s Style, indent string) []string {
	widths := make([]int, len(t.right))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := len(indent) - 2
	for _, width := range widths {
		total += width + 2
	}
	fits := max(s.page(), s.columns())
	if t.terminal > 0 {
		fits = t.terminal
	}
	isHidden := make([]bool, len(widths))
	for _, column := range t.spare {
		excess := total - fits
		if excess <= 0 || s.Whole {
			break
		}
		if column == t.cuts && widths[column]-excess >= leastText {
			widths[column] -= excess
			total = fits
			break
		}
		isHidden[column] = true
		total -= widths[column] + 2
		t.hidden = append(t.hidden, t.rows[0][column])
	}
	if excess := total - fits; excess > 0 && !s.Whole {
		widths[0] = max(widths[0]-excess, min(widths[0], leastName))
	}
	lines := make([]string, 0, len(t.rows))
	for number, row := range t.rows {
		line := strings.TrimRight(t.line(row, widths, isHidden, indent), " ")
		if t.terminal > 0 {
			line = s.cut(line, t.terminal)
		}
		if number == 0 {
			line = s.paint(dim, line)
		}
		lines = append(lines, line)
	}
	return lines
}

// note says which columns lines has left out; none when it has none.
func (t *table) note(s Style, indent string) []string {
	if len(t.hidden) == 0 {
		return nil
	}
	lines := wrapped(indent, "a wider terminal also shows "+strings.Join(t.hidden, ", "), s.columns())
	for i := range lines {
		lines[i] = s.paint(dim, lines[i])
	}
	return lines
}

func (t *table) line(row []string, widths []int, isHidden []bool, indent string) string {
	var text strings.Builder
	text.WriteString(indent)
	for i, cell := range row {
		if isHidden[i] {
			continue
		}
		cell = cut(cell, widths[i])
		if i > 0 {
			text.WriteString("  ")
		}
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if t.right[i] {
			text.WriteString(pad + cell)
		} else {
			text.WriteString(cell + pad)
		}
	}
	return text.String()
}

// wrapped breaks text at spaces into lines of at most width characters, the later ones indented as deep as the first
// begins.
func wrapped(first, text string, width int) []string {
	return wrappedWords(first, strings.Fields(Clean(text)), width)
}

// wrappedWords is wrapped for words that may have spaces in them, where no line ends.
func wrappedWords(first string, words []string, width int) []string {
	indent := strings.Repeat(" ", utf8.RuneCountInString(first))
	var lines []string
	line, empty := first, true
	for _, word := range words {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line, empty = indent, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	return append(lines, strings.TrimRight(line, " "))
}
