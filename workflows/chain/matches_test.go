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
		pattern := `(?s)\A`
		for range rapid.IntRange(0, 5).Draw(t, "pieces") {
			if rapid.Bool().Draw(t, "free") {
				pieces = append(pieces, piece{name: "value"})
				pattern += ".*"
			} else {
				literal := few.Draw(t, "literal")
				pieces = append(pieces, piece{literal: literal})
				pattern += regexp.QuoteMeta(literal)
			}
		}
		text := strings.Join([]string{few.Draw(t, "text"), few.Draw(t, "text"), few.Draw(t, "text")}, "")
		if got, want := matches(text, pieces), regexp.MustCompile(pattern+`\z`).MatchString(text); got != want {
			t.Errorf("%q matches %q: %v, want %v", text, pattern, got, want)
		}
	})
}
