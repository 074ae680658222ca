package trigger

// UnreadSubject is one that the stream of events captures and no binding reads: no key of a binding is without a dash.
const UnreadSubject = "spillway.scheduled.nobody"
