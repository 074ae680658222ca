package devserver

import (
	"testing"

	"go.temporal.io/server/common/authorization"

	"github.com/spillway-ml/spillway/activities/access"
)

// TestAttackWithWhatIsAlmostTheToken shows the gate of Temporal what the guard of the API is shown in an Authorization
// header: both read it alike.
func TestAttackWithWhatIsAlmostTheToken(t *testing.T) {
	t.Parallel()
	keys, err := access.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for header, owner := range map[string]bool{
		"Bearer " + keys.Token(): true, "bearer  " + keys.Token() + " ": true,
		"": false, "Bearer": false, "Bearer" + " ": false, keys.Token(): false, "Basic " + keys.Token(): false,
		"Bearer " + keys.Token()[1:]:    false,
		"Bearer " + keys.MetricsToken(): false, "Bearer " + keys.BuildToken("digits@0123456789ab"): false,
	} {
		claims, err := gate{keys}.GetClaims(&authorization.AuthInfo{AuthToken: header})
		if err != nil || (claims != nil) != owner {
			t.Errorf("%q: got claims %v, error %v; want the owner's: %t", header, claims, err, owner)
		}
	}
}
