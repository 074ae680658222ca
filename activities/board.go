package activities

import (
	"context"
	"fmt"
)

// Board is where attempts that work together leave messages for one another: each under a name of its group, written
// once. Implementations are safe for concurrent use, also by several processes. Groups and names are 1 to 100
// lower-case letters, digits and '-'.
type Board interface {
	// Post leaves data under a name of a group, unless something is there already: first says whether it was not.
	Post(ctx context.Context, group, name string, data []byte) (first bool, err error)
	// Look returns what is under a name. It wraps ErrMissing when nothing is. One of a long message asks Found first.
	Look(ctx context.Context, group, name string) ([]byte, error)
	// Wipe removes what is under these names of a group, and all of the group where none is named; it is no error when
	// nothing is there.
	Wipe(ctx context.Context, group string, names ...string) error
}

// longestName bounds names of groups and messages, in bytes.
const longestName = 100

// CheckMessage refuses what can be no group or no name on a Board.
func CheckMessage(group string, names ...string) error {
	for _, name := range append([]string{group}, names...) {
		for _, letter := range []byte(name) {
			if (letter < 'a' || letter > 'z') && (letter < '0' || letter > '9') && letter != '-' {
				return fmt.Errorf("%q is no name on a board: it has lower-case letters, digits and '-' only", name)
			}
		}
		if name == "" || len(name) > longestName {
			return fmt.Errorf("a name on a board of %d bytes: give 1 to %d", len(name), longestName)
		}
	}
	return nil
}

type foundKey struct{}

// WithFound returns a context whose Looks ask found once they know that the message is there, and of how many bytes,
// before they read it; one that is answered an error ends with that. Looks at what is in memory already need not ask.
func WithFound(ctx context.Context, found func(bytes int64) error) context.Context {
	return context.WithValue(ctx, foundKey{}, found)
}

// Found is for boards: it reports whether a Look that has found a message of so many bytes goes on and reads it. The
// error is what the Look returns.
func Found(ctx context.Context, bytes int64) error {
	if found, asked := ctx.Value(foundKey{}).(func(bytes int64) error); asked {
		return found(bytes)
	}
	return nil
}
