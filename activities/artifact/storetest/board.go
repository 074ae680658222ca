package storetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spillway-ml/spillway/activities"
)

// RunBoard tries a board that open returns empty.
func RunBoard(t *testing.T, open func(t *testing.T) activities.Board) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, activities.Board){
		"what is posted is read":             testPost,
		"the first that is posted stays":     testFirst,
		"what is wiped is gone":              testWipe,
		"strange names are refused":          testStrangeNames,
		"of many at once exactly one is it":  testManyFirst,
		"a group of which nothing is known":  testUnknown,
		"a message of nothing is a message":  testEmpty,
		"a message of a megabyte is as good": testMegabyte,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func post(t *testing.T, board activities.Board, group, name, data string, first bool) {
	t.Helper()
	if got, err := board.Post(t.Context(), group, name, []byte(data)); err != nil || got != first {
		t.Fatalf("post %s for %s: first is %t, %v, want %t", name, group, got, err, first)
	}
}

// look wants a message, or "" for none.
func look(t *testing.T, board activities.Board, group, name, want string) {
	t.Helper()
	got, err := board.Look(t.Context(), group, name)
	if want == "" && !errors.Is(err, activities.ErrMissing) {
		t.Fatalf("%s of %s: %q, %v, want %v", name, group, got, err, activities.ErrMissing)
	}
	if want != "" && (err != nil || string(got) != want) {
		t.Fatalf("%s of %s: %d bytes, %v, want %d", name, group, len(got), err, len(want))
	}
}

func testPost(t *testing.T, board activities.Board) {
	t.Helper()
	post(t, board, "one", "a", "of one", true)
	post(t, board, "two", "a", "of two", true)
	look(t, board, "one", "a", "of one")
	look(t, board, "two", "a", "of two")
	look(t, board, "one", "b", "")
}

func testFirst(t *testing.T, board activities.Board) {
	t.Helper()
	post(t, board, "group", "name", "first", true)
	post(t, board, "group", "name", "second", false)
	look(t, board, "group", "name", "first")
}

func testWipe(t *testing.T, board activities.Board) {
	t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		post(t, board, "group", name, name, true)
	}
	post(t, board, "group-of-others", "a", "other", true)
	if err := board.Wipe(t.Context(), "group", "a", "b", "never"); err != nil {
		t.Fatal(err)
	}
	look(t, board, "group", "a", "")
	look(t, board, "group", "c", "c")
	post(t, board, "group", "a", "again", true)
	if err := board.Wipe(t.Context(), "group"); err != nil {
		t.Fatal(err)
	}
	look(t, board, "group", "a", "")
	look(t, board, "group", "c", "")
	look(t, board, "group-of-others", "a", "other")
}

func testStrangeNames(t *testing.T, board activities.Board) {
	t.Helper()
	for _, strange := range []string{"", "..", "a/b", "A", "a b", "a.b", strings.Repeat("a", 101), "ä"} {
		if _, err := board.Post(t.Context(), strange, "name", nil); err == nil {
			t.Errorf("group %q was taken", strange)
		}
		if _, err := board.Post(t.Context(), "group", strange, nil); err == nil {
			t.Errorf("name %q was taken", strange)
		}
	}
}

func testManyFirst(t *testing.T, board activities.Board) {
	t.Helper()
	var firsts atomic.Int32
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			first, err := board.Post(t.Context(), "group", "name", fmt.Appendf(nil, "message %d", i))
			if err != nil {
				t.Error(err)
			}
			if first {
				firsts.Add(1)
			}
		})
	}
	all.Wait()
	if got := firsts.Load(); got != 1 {
		t.Errorf("%d were told to be the first", got)
	}
}

func testUnknown(t *testing.T, board activities.Board) {
	t.Helper()
	look(t, board, "unknown", "name", "")
	if err := board.Wipe(t.Context(), "unknown"); err != nil {
		t.Error(err)
	}
	if err := board.Wipe(t.Context(), "unknown", "name"); err != nil {
		t.Error(err)
	}
}

func testEmpty(t *testing.T, board activities.Board) {
	t.Helper()
	post(t, board, "group", "name", "", true)
	if got, err := board.Look(t.Context(), "group", "name"); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	post(t, board, "group", "name", "more", false)
}

func testMegabyte(t *testing.T, board activities.Board) {
	t.Helper()
	data := strings.Repeat("x", 1<<20)
	post(t, board, "group", "name", data, true)
	look(t, board, "group", "name", data)
}
