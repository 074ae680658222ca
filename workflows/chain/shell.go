package chain

import (
	"strings"
)

// where says what surrounds a place in a shell script.
type where int

const (
	bare     where = iota // the shell splits what an expansion gives into words
	inText                // it does not: between double quotes, in a here-document, in a comment
	inNumber              // it does not in arithmetic either
	inSingle              // between single quotes nothing is expanded
	escaped               // after a backslash
	verbatim              // in a here-document in which nothing is expanded
)

// quoting follows the quotes of a shell script, byte by byte. The zero value stands at the beginning of one.
//
// It knows quotes, backslashes, comments, command substitutions, arithmetic and here-documents. It is no parser: see
// script for what follows from an error.
type quoting struct {
	open     []byte // innermost last: '\'', '"', '(' of a list or a substitution, 'a' of arithmetic, '`'
	tick     int    // how deep the backtick is that is open; 0 when none is
	escape   bool   // the byte before was a backslash that counts
	comment  bool
	previous byte // 0 at the beginning
	line     []byte
	starts   []int      // where on the line the words of its here-documents begin
	awaited  []document // here-documents whose text begins on the next line
	document *document  // the one whose text this is
}

// document is a here-document.
type document struct {
	end      string
	tabs     bool // tabs before the end are not looked at
	verbatim bool
}

func (q *quoting) top() byte {
	if len(q.open) == 0 {
		return 0
	}
	return q.open[len(q.open)-1]
}

// place says what surrounds the next byte.
func (q *quoting) place() where {
	switch {
	case q.document != nil && q.document.verbatim:
		return verbatim
	case q.escape:
		return escaped
	case q.document != nil, q.comment, q.top() == '"':
		return inText
	case q.top() == 'a':
		return inNumber
	case q.top() == '\'':
		return inSingle
	default:
		return bare
	}
}

// read takes the next byte.
func (q *quoting) read(b byte) {
	defer func() {
		q.previous = b
		if b == '\n' {
			q.line, q.starts = q.line[:0], q.starts[:0]
		} else {
			q.line = append(q.line, b)
		}
	}()
	if b == '\n' && q.document == nil {
		for _, start := range q.starts {
			q.awaited = append(q.awaited, documentOf(string(q.line[start:])))
		}
	}
	switch {
	case q.document != nil:
		q.readDocument(b)
	case q.escape:
		q.escape = false
	case b == '\n' && q.top() != '\'' && q.top() != '"':
		q.comment = false
		q.nextDocument()
	case q.comment:
	case q.top() == '\'':
		if b == '\'' {
			q.pop()
		}
	case b == '\\':
		q.escape = true
	case q.top() == '"':
		q.readDouble(b)
	default:
		q.readBare(b)
	}
}

func (q *quoting) push(b byte) { q.open = append(q.open, b) }
func (q *quoting) pop()        { q.open = q.open[:len(q.open)-1] }

func (q *quoting) readDouble(b byte) {
	switch {
	case b == '"':
		q.pop()
	case b == '(' && q.previous == '$':
		q.push('(')
	case b == '`':
		q.backtick()
	}
}

// backtick begins a command substitution, or ends the one that goes on.
func (q *quoting) backtick() {
	if q.tick > 0 {
		q.open, q.tick = q.open[:q.tick-1], 0
		return
	}
	q.push('`')
	q.tick = len(q.open)
}

func (q *quoting) readBare(b byte) {
	switch {
	case b == '\'' || b == '"':
		q.push(b)
	case b == '`':
		q.backtick()
	case b == '(' && q.top() == '(' && q.previous == '(' && len(q.line) > 1 && q.line[len(q.line)-2] == '$':
		q.open[len(q.open)-1] = 'a' // $((
		q.push('a')
	case b == '(' && q.top() == 'a':
		q.push('a')
	case b == '(':
		q.push('(')
	case b == ')' && (q.top() == '(' || q.top() == 'a'):
		q.pop()
	case b == '#' && (q.previous == 0 || strings.IndexByte(" \t\n;|&()", q.previous) >= 0):
		q.comment = true
	case b == '<' && q.previous == '<' && q.top() != 'a':
		q.operator()
	}
}

// operator takes the second or a later '<' in a row: "<<" asks for a here-document, "<<<" does not.
func (q *quoting) operator() {
	end := len(q.line)
	if n := len(q.starts); n > 0 && q.starts[n-1] == end {
		q.starts = q.starts[:n-1]
		return
	}
	if end < 2 || q.line[end-2] != '<' {
		q.starts = append(q.starts, end+1)
	}
}

// nextDocument begins the text of the first here-document that is awaited.
func (q *quoting) nextDocument() {
	q.document = nil
	if len(q.awaited) > 0 {
		q.document, q.awaited = &q.awaited[0], q.awaited[1:]
	}
}

func (q *quoting) readDocument(b byte) {
	if b != '\n' {
		return
	}
	line := string(q.line)
	if q.document.tabs {
		line = strings.TrimLeft(line, "\t")
	}
	if line == q.document.end {
		q.nextDocument()
	}
}

// documentOf reads what follows "<<" on its line: "END", "-END", " 'END'".
func documentOf(rest string) document {
	rest, tabs := strings.CutPrefix(rest, "-")
	word := strings.TrimLeft(rest, " \t")
	if i := strings.IndexAny(word, " \t;|&<>()"); i >= 0 {
		word = word[:i]
	}
	end := strings.NewReplacer(`'`, "", `"`, "", `\`, "").Replace(word)
	return document{end: end, tabs: tabs, verbatim: word != end}
}
