package flag

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// ShellWords writes words on one line as a shell reads them. What cannot be printed, as a break of a line or what a
// terminal would obey, is written as an escape between $'...', which POSIX has had since 2024 and bash and zsh for
// long.
func ShellWords(words ...string) string {
	written := make([]string, len(words))
	for i, word := range words {
		switch {
		case !utf8.ValidString(word) || strings.ContainsFunc(word, isNotPrinted):
			written[i] = escaped(word)
		case word == "" || strings.ContainsFunc(word, isNotPlain):
			written[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		default:
			written[i] = word
		}
	}
	return strings.Join(written, " ")
}

// isNotPlain reports whether a shell may read a character otherwise without quotes.
func isNotPlain(r rune) bool {
	return !strings.ContainsRune("_@%+=:,./-", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

func isNotPrinted(r rune) bool { return !unicode.IsPrint(r) }

// escaped is a word between $'...', the bytes of what cannot be printed in octal: three digits, behind which any
// character may stand.
func escaped(word string) string {
	var out strings.Builder
	for len(word) > 0 {
		r, size := utf8.DecodeRuneInString(word)
		switch {
		case r == '\'' || r == '\\':
			out.WriteString(`\` + word[:size])
		case r == '\n':
			out.WriteString(`\n`)
		case r == utf8.RuneError && size == 1 || isNotPrinted(r):
			for _, b := range []byte(word[:size]) {
				out.Write([]byte{'\\', '0' + b>>6, '0' + b>>3&7, '0' + b&7})
			}
		default:
			out.WriteString(word[:size])
		}
		word = word[size:]
	}
	return "$'" + out.String() + "'"
}
