package enforce

// TreeName lets tests find the cgroups of an owner.
var TreeName = treeName
