package documents

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
)

// Set is the documents of one kind, each the JSON of a T, by name. Its methods may be called concurrently. Use Of.
type Set[T any] struct {
	documents *Documents
	prefix    string

	mu  sync.Mutex
	all map[string]T // guarded by mu
}

// Of returns the set of a kind, which is a word. Changed is told of each document that there is, and then of each
// change by whichever server, one at a time: before is nil of one that is new, and now of one that is gone. It may read
// the set, which has the change already, and may change no document. Nil is told nothing.
func Of[T any](d *Documents, kind string, changed func(name string, before, now *T)) *Set[T] {
	s := &Set[T]{documents: d, prefix: kind + ".", all: map[string]T{}}
	d.followPrefix(s.prefix, func(key string, text []byte) {
		name, err := nameOf(key[len(s.prefix):])
		var now *T
		if text != nil && err == nil {
			now = new(T)
			err = json.Unmarshal(text, now)
		}
		if err != nil {
			d.logger.Warn("a document that servers share cannot be read; it is ignored", "document", key, "error", err)
			return
		}
		before := s.put(name, now)
		if changed != nil {
			changed(name, before, now)
		}
	})
	return s
}

// put takes in a document, and returns the one before.
func (s *Set[T]) put(name string, now *T) (before *T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, known := s.all[name]; known {
		before = &was
	}
	if now == nil {
		delete(s.all, name)
	} else {
		s.all[name] = *now
	}
	return before
}

// Get returns the document of a name.
func (s *Set[T]) Get(name string) (document T, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	document, known = s.all[name]
	return document, known
}

// All returns all documents by name.
func (s *Set[T]) All() map[string]T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all)
}

// Len returns how many there are.
func (s *Set[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Remove is what a change returns to have no document any more.
var Remove = errors.New("remove it") //nolint:errname,staticcheck // it is no failure

// Change replaces a document by what next returns, given the one that is stored, the zero T where there is none. Next
// may be called several times, when servers change the same document at once. Where it returns Remove the document
// goes; any other error changes nothing and is returned as it is.
func (s *Set[T]) Change(ctx context.Context, name string, next func(now T, known bool) (T, error)) error {
	return s.documents.change(ctx, s.prefix+keyOf(name), func(text []byte) ([]byte, error) {
		var now T
		if text != nil {
			if err := json.Unmarshal(text, &now); err != nil {
				return nil, fmt.Errorf("read what servers share (%s%s): %w", s.prefix, name, err)
			}
		}
		then, err := next(now, text != nil)
		if errors.Is(err, Remove) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(then)
	})
}

var plain = regexp.MustCompile(`^[A-Za-z0-9][-_A-Za-z0-9]*(\.[-_A-Za-z0-9]+)*$`)

// encoded begins what stands in a key for a name that cannot be part of one.
const encoded = "="

// keyOf is what stands in a key for a name: itself, or an encoding of it that no name equals.
func keyOf(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return encoded + base64.RawURLEncoding.EncodeToString([]byte(name))
}

func nameOf(key string) (string, error) {
	text, is := strings.CutPrefix(key, encoded)
	if !is {
		return key, nil
	}
	name, err := base64.RawURLEncoding.DecodeString(text)
	return string(name), err
}
