package stack

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/cmd/internal/space"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestDoctorSaysWhatADiskHasRoomForOfWhatArtifactsMayTake(t *testing.T) {
	t.Parallel()
	policy := retention.Policy{KeepFor: 720 * time.Hour, KeepBytes: 60 * quantity.GiB}
	for name, test := range map[string]struct {
		used, free quantity.Bytes
		want       string
	}{
		"there is room for all":  {10 * quantity.GiB, 50 * quantity.GiB, "(--keep-for, --keep-bytes)"},
		"others have the room":   {2 * quantity.GiB, 5 * quantity.GiB, "of which the disk has room for 7 GiB"},
		"little of it is theirs": {0, 59 * quantity.GiB, "of which the disk has room for 59 GiB"},
	} {
		found := retentionFinding("artifacts", test.used, space.Disk{Size: 100 * quantity.GiB, Free: test.free}, policy)
		if found.Severity != fine || !strings.HasSuffix(found.Found, test.want) {
			t.Errorf("%s: got %+v, want %q", name, found, test.want)
		}
	}
}
