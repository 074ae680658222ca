package join

// Below AskPrefix are the paths of what only hosts ask for, with their own token; below BuildPrefix are the programs of
// builds, each called APP@DIGEST.
const (
	AskPrefix   = "/api/v1/host/"
	BuildPrefix = "/api/v1/builds/"
)
