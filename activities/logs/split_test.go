package logs

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

var begin = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// piece is what a program writes at a time; empty text is a tick.
type piece struct {
	at   time.Duration // after begin
	text string
}

// split returns the lines of pieces, ended.
func split(pieces ...piece) []wire.LogLine {
	var lines []wire.LogLine
	emit := func(line wire.LogLine) { lines = append(lines, line) }
	s := splitter{origin: wire.LogOut}
	now := begin
	for _, p := range pieces {
		now = begin.Add(p.at)
		if p.text == "" {
			s.tick(now, emit)
		} else {
			s.write([]byte(p.text), now, emit)
		}
	}
	s.finish(now, emit)
	return lines
}

func texts(lines []wire.LogLine) []string {
	var all []string
	for _, line := range lines {
		text := line.Text
		if line.Redrawn {
			text = "~" + text
		}
		if line.Cut {
			text += "…"
		}
		all = append(all, text)
	}
	return all
}

func TestOutputIsSplitIntoLines(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	long := strings.Repeat("x", maxLine)
	for name, test := range map[string]struct {
		pieces []piece
		want   []string
	}{
		"nothing":                            {nil, nil},
		"lines":                              {[]piece{{0, "a\nb\n"}}, []string{"a", "b"}},
		"an empty line":                      {[]piece{{0, "a\n\nb\n"}}, []string{"a", "", "b"}},
		"no end":                             {[]piece{{0, "a\nb"}}, []string{"a", "b"}},
		"a line in pieces":                   {[]piece{{0, "a"}, {5000 * ms, ""}, {6000 * ms, "b\n"}}, []string{"ab"}},
		"ends of Windows":                    {[]piece{{0, "a\r\nb\r\n\r\n"}}, []string{"a", "b", ""}},
		"an end of Windows in pieces":        {[]piece{{0, "a\r"}, {0, "\nb\r"}, {0, "\n"}}, []string{"a", "b"}},
		"a character in pieces":              {[]piece{{0, "gr\xc3"}, {0, "\xb6\xc3"}, {0, "\x9fe\n"}}, []string{"größe"}},
		"no UTF-8":                           {[]piece{{0, "a\xff\xfeb\n"}}, []string{"a\uFFFDb"}},
		"the longest line":                   {[]piece{{0, long + "\n"}}, []string{long}},
		"a line that is too long":            {[]piece{{0, long + "y"}, {0, "z\nb\n"}}, []string{long + "…", "b"}},
		"a long line cut within a character": {[]piece{{0, long[1:] + "ß\n"}}, []string{long[1:] + "…"}},

		"a bar of one second": {[]piece{
			{0, "\r 0%"},
			{300 * ms, "\r30%"},
			{600 * ms, "\r60%"},
			{900 * ms, "\r90%"},
			{950 * ms, "\r100%\n"},
		}, []string{"~ 0%", "~100%"}},
		"a bar of three seconds": {[]piece{
			{0, "\r0"},
			{600 * ms, "\r1"},
			{1200 * ms, "\r2"},
			{1800 * ms, "\r3"},
			{2400 * ms, "\r4"},
			{3000 * ms, "\r5\n"},
		}, []string{"~0", "~2", "~4", "~5"}},
		"a bar that stands still": {[]piece{
			{0, "\r0%"},
			{200 * ms, ""},
			{400 * ms, "\r50%"},
			{600 * ms, ""},
			{1400 * ms, ""},
			{9000 * ms, ""},
		}, []string{"~0%", "~50%"}},
		"a bar that is wiped": {
			[]piece{{0, "\r0%"}, {10 * ms, "\r9%"}, {20 * ms, "\r    \r"}, {30 * ms, "\n"}},
			[]string{"~0%", "~9%"},
		},
		"a bar and then lines":           {[]piece{{0, "0%\r1%\ndone\n"}}, []string{"~0%", "~1%", "done"}},
		"a bar that returns at the end":  {[]piece{{0, "0%\r"}, {10 * ms, "1%\r"}}, []string{"~0%", "~1%"}},
		"a line that returns at its end": {[]piece{{0, "0%\r"}}, []string{"0%"}},
		"a blank bar":                    {[]piece{{0, "\r\r  \r\n"}}, nil},
		"the state of a bar is told once": {
			[]piece{{0, "\r0%"}, {0, ""}, {2000 * ms, "\r0%"}, {4000 * ms, "\n"}},
			[]string{"~0%"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, texts(split(test.pieces...))); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLinesCarryTimeAndOrigin(t *testing.T) {
	t.Parallel()
	want := []wire.LogLine{
		{At: begin, Origin: wire.LogOut, Text: "a"},
		{At: begin.Add(time.Second), Origin: wire.LogOut, Text: "bc"},
	}
	if diff := cmp.Diff(want, split(piece{0, "a\nb"}, piece{time.Second, "c"})); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestAMinuteOfABarIsAboutALineASecond(t *testing.T) {
	t.Parallel()
	var pieces []piece
	for i := range 60_000 {
		pieces = append(pieces, piece{time.Duration(i) * time.Millisecond, "\rstep " + strings.Repeat("#", i%80+1)})
	}
	if got := len(split(pieces...)); got < 59 || got > 62 {
		t.Errorf("60 s of a bar are %d lines", got)
	}
}

// lineEnds is the specification of the splitter for text that returns only before "\n".
func lineEnds(text string) []string {
	if text == "" {
		return nil
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

func TestHowTextIsCutIntoPiecesDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.RuneFrom([]rune("ab \nß\r"))).Draw(t, "text")
		cuts := rapid.SliceOf(rapid.IntRange(1, 5)).Draw(t, "cuts")
		var pieces []piece
		for rest := text; rest != ""; {
			n := len(rest)
			if len(cuts) > 0 {
				n, cuts = min(n, cuts[0]), cuts[1:]
			}
			pieces = append(pieces, piece{0, rest[:n]})
			rest = rest[n:]
		}
		whole := texts(split(piece{0, text}))
		if text == "" {
			whole = nil
		}
		got := texts(split(pieces...))
		if diff := cmp.Diff(whole, got); diff != "" {
			t.Fatalf("in pieces (-whole +got):\n%s", diff)
		}
		if plain := strings.ReplaceAll(text, "\r\n", "\n"); !strings.Contains(plain, "\r") {
			if diff := cmp.Diff(lineEnds(text), got); diff != "" {
				t.Fatalf("lines (-specified +got):\n%s", diff)
			}
		}
	})
}

func FuzzSplit(f *testing.F) {
	f.Add([]byte("a\r\nb\rc\n\xff\xfe\r\r\n"), 3)
	f.Add([]byte(strings.Repeat("x", 2*maxLine)+"\r\n"), maxLine)
	f.Fuzz(func(t *testing.T, data []byte, at int) {
		at = min(max(at, 0), len(data))
		var pieces []piece
		for i, part := range []string{string(data[:at]), string(data[at:])} {
			if part != "" {
				pieces = append(pieces, piece{time.Duration(i) * time.Minute, part},
					piece{time.Duration(i)*time.Minute + time.Second, ""})
			}
		}
		lines := split(pieces...)
		if ends := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + 3; len(lines) > ends {
			t.Fatalf("%q became %d lines", data, len(lines))
		}
		for _, line := range lines {
			if !utf8.ValidString(line.Text) || strings.ContainsAny(line.Text, "\r\n") || len(line.Text) > 3*maxLine {
				t.Fatalf("%q became the line %q", data, line.Text)
			}
		}
	})
}
