package devserver

import (
	"fmt"
	"strconv"

	"github.com/spillway-ml/spillway/activities/access"
)

// writeProfile writes the configuration with which the temporal command connects as the owner. An API key alone would
// make it ask for TLS.
func writeProfile(dir, address string, keys *access.Keys) error {
	return access.Write(dir, access.TemporalFile, fmt.Sprintf(
		"[profile.default]\naddress = %s\nnamespace = %s\napi_key = %s\n\n[profile.default.tls]\ndisabled = true",
		strconv.Quote(address), strconv.Quote(Namespace), strconv.Quote(keys.Token())))
}
