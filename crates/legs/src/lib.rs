//! What a daemon's sockets have to do with a link: the settings of a leg as operators write them, the leg as the kernel takes
//! it, and the thread that shares out its rate.
