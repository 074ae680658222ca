package artifact_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

func ExampleFiles() {
	dir, err := os.MkdirTemp("", "artifacts-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	store, err := artifact.FromURL(artifact.URL(dir))
	if err != nil {
		fmt.Println(err)
		return
	}
	ref, err := store.Put(context.Background(), strings.NewReader("weights"))
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := activities.ReadAll(context.Background(), store, ref.Digest)
	fmt.Println(ref.Digest[:8], ref.Bytes, string(data), err)
	// Output: 9a129038 7 weights <nil>
}
