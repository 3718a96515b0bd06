from distributed_privrl.runtime.session import prepare_environment

prepare_environment()  # the tests here import Ray, which settles its authentication then
