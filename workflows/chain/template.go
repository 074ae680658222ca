package chain

import (
	"fmt"
	"regexp"
	"strings"
)

// piece is a part of a text: literal text, or the name of a value that takes its place.
type piece struct {
	literal, name string
	offset        int // of its first byte in the text
}

// mistake is something wrong in a text.
type mistake struct {
	offset int
	text   string
}

// valueName matches what may stand in ${}: a parameter or variable, or a value that a stage reported.
var valueName = regexp.MustCompile(`^([a-z][a-z0-9_]{0,39}|[a-z][a-z0-9_-]{0,39}\.result\.[A-Za-z0-9_-]{1,80})$`)

// split finds the values that a text names. "$${" stands for "${" itself; a '$' before anything else is an ordinary
// character.
func split(text string) (pieces []piece, mistakes []mistake) {
	literal := strings.Builder{}
	start := 0
	flush := func() {
		if literal.Len() > 0 {
			pieces = append(pieces, piece{literal: literal.String(), offset: start})
			literal.Reset()
		}
	}
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], "$${"):
			literal.WriteString("${")
			i += len("$${")
		case strings.HasPrefix(text[i:], "${"):
			length := strings.IndexByte(text[i:], '}')
			if length < 0 {
				mistakes = append(mistakes, mistake{i, "${ is never closed; write ${name}, or $${ for the characters themselves"})
				return pieces, mistakes
			}
			name := text[i+len("${") : i+length]
			if valueName.MatchString(name) {
				flush()
				pieces = append(pieces, piece{name: name, offset: i})
			} else {
				mistakes = append(mistakes, mistake{i, fmt.Sprintf(
					"${%s} names no value; write ${name} or ${stage.result.key}, or $${%s} to leave it to the shell", shortened(name),
					shortened(name))})
			}
			i += length + 1
			start = i
		default:
			literal.WriteByte(text[i])
			i++
		}
	}
	flush()
	return pieces, mistakes
}

func shortened(text string) string {
	if characters := []rune(text); len(characters) > 40 {
		return string(characters[:40]) + "..."
	}
	return text
}

// expand puts values in the place of their names.
func expand(pieces []piece, value func(name string) string) string {
	var out strings.Builder
	for _, p := range pieces {
		if p.name != "" {
			out.WriteString(value(p.name))
		} else {
			out.WriteString(p.literal)
		}
	}
	return out.String()
}

// script turns a text into one for the shell, in which each value is read from the environment variable that variable
// says, which is told what surrounds it.
//
// A value is never put into the text, so that none can be read as a part of the script. Where the shell would split
// what it reads into words, it is quoted: how depends on the quotes around it, which are followed as far as it takes to
// find them. If they are misjudged, a value may be split at its spaces, and that is all: the shell does not read again
// what an expansion gave, unless the script asks for it, as eval does (POSIX.1-2017, Shell Command Language, 2.6:
// https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html#tag_18_06).
func script(text string, variable func(name string, in where) string) (string, []mistake) {
	pieces, mistakes := split(text)
	var out strings.Builder
	var shell quoting
	for _, p := range pieces {
		if p.name == "" {
			for i := range len(p.literal) {
				shell.read(p.literal[i])
			}
			out.WriteString(p.literal)
			continue
		}
		in := shell.place()
		expansion := "${" + variable(p.name, in) + "}"
		switch in {
		case bare:
			out.WriteString(`"` + expansion + `"`)
		case inSingle:
			out.WriteString(`'"` + expansion + `"'`)
		case inText, inNumber:
			out.WriteString(expansion)
		case escaped:
			mistakes = append(mistakes, mistake{
				p.offset,
				fmt.Sprintf(`a backslash stands before ${%s}; write $${ to leave it to the shell, or \\ before it for a backslash`,
					p.name),
			})
		case verbatim:
			mistakes = append(mistakes, mistake{
				p.offset,
				fmt.Sprintf("${%s} stands in a here-document whose end is quoted, in which the shell replaces nothing; take "+
					"the quotes off", p.name),
			})
		}
		shell.read('x') // what stands here is a part of a word
	}
	return out.String(), mistakes
}
