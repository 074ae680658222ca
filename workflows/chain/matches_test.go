package chain

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestATextMatchesAsARegularExpressionWouldSay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		few := rapid.StringOfN(rapid.RuneFrom([]rune("ab\n")), 0, 4, -1)
		var pieces []piece
		var pattern strings.Builder
		pattern.WriteString(`(?s)\A`)
		for range rapid.IntRange(0, 5).Draw(t, "pieces") {
			if rapid.Bool().Draw(t, "free") {
				pieces = append(pieces, piece{name: "value"})
				pattern.WriteString(".*")
			} else {
				literal := few.Draw(t, "literal")
				pieces = append(pieces, piece{literal: literal})
				pattern.WriteString(regexp.QuoteMeta(literal))
			}
		}
		text := strings.Join([]string{few.Draw(t, "text"), few.Draw(t, "text"), few.Draw(t, "text")}, "")
		pattern.WriteString(`\z`)
		if got, want := matches(text, pieces), regexp.MustCompile(pattern.String()).MatchString(text); got != want {
			t.Errorf("%q matches %q: %v, want %v", text, pattern.String(), got, want)
		}
	})
}
