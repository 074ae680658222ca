// Package commandtest has what the tests of commands share.
package commandtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spillway-ml/spillway/activities"
)

// Store is an artifact store in memory. Its methods may be called concurrently.
type Store struct {
	mu        sync.Mutex
	artifacts map[string][]byte
	failure   error
}

var _ activities.Store = (*Store)(nil)

// NewStore returns an empty store.
func NewStore() *Store { return &Store{artifacts: make(map[string][]byte)} }

// Put stores what r yields.
func (s *Store) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	s.mu.Lock()
	failure := s.failure
	s.mu.Unlock()
	if failure != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", failure)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", err)
	}
	if ctx.Err() != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", context.Cause(ctx))
	}
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.artifacts[digest] = data
	return activities.Ref{Digest: digest, Bytes: int64(len(data))}, nil
}

// Open returns the bytes of digest; their end is an error when Damage changed them.
func (s *Store) Open(_ context.Context, digest string) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, found := s.artifacts[digest]
	if !found {
		return nil, fmt.Errorf("open artifact %s: %w", digest, activities.ErrMissing)
	}
	r := io.Reader(bytes.NewReader(data))
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != digest {
		r = io.MultiReader(r, corrupt{})
	}
	return io.NopCloser(r), nil
}

// corrupt is the end of a damaged artifact.
type corrupt struct{}

// Read says that what was read is wrong.
func (corrupt) Read([]byte) (int, error) { return 0, activities.ErrCorrupt }

// Len returns how many artifacts there are.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.artifacts)
}

// Damage changes one byte of an artifact.
func (s *Store) Damage(digest string, at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	damaged := slices.Clone(s.artifacts[digest])
	damaged[at] ^= 1
	s.artifacts[digest] = damaged
}

// Fail makes every Put fail from now on; nil ends that.
func (s *Store) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// Skip ends a test that needs something this machine lacks, or fails it where the environment variable
// SPILLWAY_TEST_REQUIRE names what.
func Skip(tb testing.TB, what string, err error) {
	tb.Helper()
	if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), what) {
		tb.Fatalf("this machine has no %s: %v", what, err)
	}
	tb.Skipf("this machine has no %s: %v", what, err)
}
