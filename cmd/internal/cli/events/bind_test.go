package events

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFilterValuesAreJSONWhereTheyCanBe(t *testing.T) {
	t.Parallel()
	got, err := parseFilter([]string{"kind=image", "meta.size=3", "ok=true", `text="3"`, "empty=", "x=a=b"})
	want := map[string]any{"kind": "image", "meta.size": 3.0, "ok": true, "text": "3", "empty": "", "x": "a=b"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
