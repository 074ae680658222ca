package teams

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/predictor"
)

// File is a file of teams that is read again when it changes. Its methods may be called concurrently; of nil, which is
// no file, [File.Now] declares none.
type File struct {
	path string
	// text is that of the teams in force, and seen as it was read last; whoever calls Follow owns both.
	text, seen []byte
	now        atomic.Pointer[Teams]
}

// MistakesError is all that is wrong with a file of teams.
type MistakesError []config.Mistake

// Error implements error: the first mistake, and how many there are besides.
func (w MistakesError) Error() string {
	said := w[0].String()
	if more := len(w) - 1; more > 0 {
		said += fmt.Sprintf(" (and %d more)", more)
	}
	return said
}

// Open reads a file of teams. The error is [MistakesError] where that is in the file.
func Open(path string) (*File, error) {
	f := &File{path: path}
	text, err := os.ReadFile(path)
	if err != nil {
		return f, fmt.Errorf("read the teams: %w", err)
	}
	return f, f.take(text)
}

// Now are the teams that the file has declared last.
func (f *File) Now() Teams {
	if f == nil {
		return nil
	}
	if now := f.now.Load(); now != nil {
		return *now
	}
	return nil
}

// Bounds are what each team may have; nil where none was declared.
func (f *File) Bounds() []predictor.Team { return f.Now().Bounds() }

// read reads the file, and says whether it is another. What differs from the look before may be half written: it is
// taken when the next look finds the same.
func (f *File) read() (changed bool, err error) {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return false, fmt.Errorf("read the teams: %w", err)
	}
	settled := bytes.Equal(text, f.seen)
	f.seen = text
	if !settled || bytes.Equal(text, f.text) {
		return false, nil
	}
	err = f.take(text)
	return err == nil, err
}

// take puts what a text declares in force, unless something is wrong with it.
func (f *File) take(text []byte) error {
	f.text = text
	declared, mistakes := Parse(f.path, text)
	if len(mistakes) > 0 {
		return MistakesError(mistakes)
	}
	f.now.Store(&declared)
	return nil
}

// Look is how often a file is looked at.
const Look = 2 * time.Second

// Follow reads the file again whenever it has changed, until ctx ends. A file that has something wrong changes nothing,
// and the log says what, once.
func (f *File) Follow(ctx context.Context, logger *slog.Logger) {
	if f == nil {
		return
	}
	ticker := time.NewTicker(Look)
	defer ticker.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		changed, err := f.read()
		switch {
		case err != nil && err.Error() != said:
			said = err.Error()
			logger.WarnContext(ctx, "the teams stay as they were, as their file cannot be read", "error", err)
		case changed:
			said = ""
			logger.InfoContext(ctx, "the teams are those of the file now", "file", f.path, "teams", f.names())
		}
	}
}

func (f *File) names() string {
	var names []string
	for _, team := range f.Now() {
		names = append(names, team.Name)
	}
	return strings.Join(names, ", ")
}

// MistakesOf are those that an error of [Open] has; nil where it is another error.
func MistakesOf(err error) []config.Mistake {
	if wrong, is := errors.AsType[MistakesError](err); is {
		return wrong
	}
	return nil
}
