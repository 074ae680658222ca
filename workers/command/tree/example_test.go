package tree_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

// Code goes to another host without its caches.
func ExamplePack() {
	ctx, store := context.Background(), commandtest.NewStore()
	dir, err := os.MkdirTemp("", "tree-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a directory that stays is no part of the example
	for _, name := range []string{"here/train.py", "here/__pycache__/train.pyc"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			fmt.Println(err)
			return
		}
		if err := os.WriteFile(file, []byte("print(1)\n"), 0o600); err != nil {
			fmt.Println(err)
			return
		}
	}
	ignore, err := tree.ReadIgnore(filepath.Join(dir, "here"))
	if err != nil {
		fmt.Println(err)
		return
	}
	ref, err := tree.Pack(ctx, store, filepath.Join(dir, "here"), tree.Options{Ignore: ignore})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := tree.Unpack(ctx, store, ref, filepath.Join(dir, "there")); err != nil {
		fmt.Println(err)
		return
	}
	entries, err := os.ReadDir(filepath.Join(dir, "there"))
	fmt.Println(entries, err)
	// Output: [- train.py] <nil>
}
