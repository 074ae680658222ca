package wire

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/predictor"
)

// MaxName is the length in bytes of the longest name of a run, a host or an event: it is shown in lists and travels in
// headers.
const MaxName = 1000

// CheckText refuses text from outside that is not to be a name, or a part of one: what is longer than that many bytes,
// is not UTF-8, or holds characters that cannot be printed, such as those that steer terminals or turn the direction of
// text. Spaces and the empty text are fine.
func CheckText(text string, most int) error {
	switch odd := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }); {
	case len(text) > most:
		return fmt.Errorf("it has %d bytes: use at most %d", len(text), most)
	case !utf8.ValidString(text):
		return errors.New("it is not UTF-8: use text that can be printed")
	case odd >= 0:
		r, _ := utf8.DecodeRuneInString(text[odd:])
		return fmt.Errorf("it has a character that cannot be printed, %U: leave that out", r)
	default:
		return nil
	}
}

// checkNames refuses an event of which a name is none. Only those are looked at that the workflow workers of builds may
// tell: all else comes from the engine itself.
func checkNames(event predictor.Event) error {
	var names []string
	switch e := event.(type) {
	case predictor.RunStarted:
		names = append([]string{e.Run, e.Pipeline, e.App, e.Build, e.RetryOf, e.Team}, e.Stages...)
	case predictor.RunEnded:
		names = []string{e.Run}
	case predictor.GoalChanged:
		names = []string{e.Run}
	case predictor.Scheduled:
		names = []string{e.Run, e.Stage.App, e.Stage.Build, e.Stage.Name, e.Stage.Team}
	case predictor.Reused:
		names = []string{e.Run, e.From, e.Stage.App, e.Stage.Build, e.Stage.Name, e.Stage.Team}
	}
	for _, name := range names {
		if err := CheckText(name, MaxName); err != nil {
			return fmt.Errorf("the name %.40q: %w", name, err)
		}
	}
	return nil
}
