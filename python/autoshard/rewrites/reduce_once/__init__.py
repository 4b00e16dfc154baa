"""Sums that a loop adds up are reduced over devices once, behind it, not in every trip.

linear      through which ops parts of a sum may go on, one a device
chains      from what a loop carries back to the ops that make partial sums
blocks      values with a dim for each mesh axis over which they are parts of a sum
producers   matmuls, sums and scatters that leave a part on each device
followers   ops that hand parts on
write       all of it
"""
